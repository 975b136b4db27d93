-- Takes tokens to spend later, and gives back what is left of an earlier lease. Token buckets only.
--
-- Tokens are charged as if they were spent at the last moment they are good for. Every real spending is earlier, so
-- leases admit no more than single requests would.
--
-- KEYS  one a rule
-- ARGV  the fewest and the most tokens wanted (0 and 0 to give back only); how long they are held, in microseconds; of
--       an earlier lease, how many are given back, how many were taken and when; the time (reserved for tests:
--       otherwise empty); five a rule
-- Reply how many were taken, the time, how many more there are, then what is owed under each rule

local need, want = tonumber(ARGV[1]), tonumber(ARGV[2])
local hold = tonumber(ARGV[3])
local back, taken, taken_at = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local now = time_us(ARGV[7])
local rules = load_rules(7, now)

local available
for _, rule in ipairs(rules) do
  if back > 0 then
    -- No more than the charge, if it had been alone, still holds up: the rest has come back by itself.
    local held_up = math.max(0, (taken_at - now) * rule.c + taken * rule.a)
    rule.debt = math.max(0, rule.debt - math.min(back * rule.a, held_up))
  end
  local room = rule.b - math.max(rule.debt, hold * rule.c)
  local tokens = math.floor(room / rule.a)
  if tokens * rule.a > room then
    tokens = tokens - 1
  end
  available = math.max(0, math.min(available or tokens, tokens))
end

local granted = 0
if want > 0 and available >= need then
  granted = math.max(need, math.min(want, math.floor(available / 2)))
end
local reply = { granted, now, available - granted }
for _, rule in ipairs(rules) do
  if granted > 0 then
    rule.debt = math.max(rule.debt, hold * rule.c) + granted * rule.a
  end
  if granted > 0 or back > 0 then
    bucket.save(rule, now)
  end
  reply[#reply + 1] = rule.debt
end
return reply
