-- Gives back the newest cost spent under all rules, at most all of it.
--
-- KEYS  one a rule
-- ARGV  the cost, the time (reserved for tests: otherwise empty), five a rule
-- Reply 1

local cost = tonumber(ARGV[1])
local now = time_us(ARGV[2])
for _, rule in ipairs(load_rules(2, now)) do
  rule.kind.refund(rule, cost)
  rule.kind.save(rule, now)
end
return { 1 }
