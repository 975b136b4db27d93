-- Spends a cost under all rules, or under none; or only says what it would do.
--
-- KEYS  one a rule
-- ARGV  1 to spend or 0 to look, the cost, the time (reserved for tests: otherwise empty), five a rule
-- Reply 1 if it fits, the time, three numbers a rule: its state, after spending if it was spent under; of a shadow
--       rule, before

local cost = tonumber(ARGV[2])
local now = time_us(ARGV[3])
local rules = load_rules(3, now)

local fits = true
for _, rule in ipairs(rules) do
  if not rule.shadow and cost > 0 and not rule.kind.fits(rule, cost) then
    fits = false
  end
end

local spends = fits and cost > 0 and ARGV[1] == '1'
local reply = { fits and 1 or 0, now }
for _, rule in ipairs(rules) do
  local state
  if spends and not rule.shadow then
    rule.kind.spend(rule, cost)
    rule.kind.save(rule, now)
    state = { rule.kind.report(rule, 0) }
  else
    state = { rule.kind.report(rule, cost) }
    if spends and rule.kind.fits(rule, cost) then
      rule.kind.spend(rule, cost)
      rule.kind.save(rule, now)
    end
  end
  for _, number in ipairs(state) do
    reply[#reply + 1] = number
  end
end
return reply
