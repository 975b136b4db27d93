-- What every script begins with: the time, and the state of each rule at that time.
--
-- All numbers are whole and below 2^53, where doubles are exact. Times are microseconds since the Unix epoch by the
-- server's clock. A rule is a key and five arguments: kind, shadow (1 or 0), and what the kind takes.

-- How far the clock may step back before a stored moment is no longer believed (2^30 ns, as in-process).
local STEP_BACK_US = 1073741
-- How long a key outlives what it says.
local LINGER_MS = 1000

local function text(number)
  return string.format('%.0f', number)
end

local function time_us(given)
  if given ~= '' then
    return tonumber(given)
  end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function ttl_ms(us)
  return text(math.ceil(us / 1000) + LINGER_MS)
end

-- The numbers of a stored value; nil where nothing is stored.
local function numbers(key, pattern)
  local value = redis.call('GET', key)
  if not value then
    return nil
  end
  local first, second, third = string.match(value, pattern)
  if not first then
    error('the key ' .. key .. ' holds something else than a tollgate state')
  end
  return tonumber(first), tonumber(second), tonumber(third)
end

-- Token bucket. Takes the interval of one token and of a whole burst in units of time, and the units in a microsecond.
-- State: when it was written, and what was owed then.
local bucket = {}

function bucket.load(rule, now)
  rule.debt = 0
  local at, debt = numbers(rule.key, '^(%d+) (%d+)$')
  if at then
    rule.debt = math.max(0, debt + (at - now) * rule.c)
    -- The clock stepped back far, or an earlier policy owed longer than this one can: one whole burst at most.
    if rule.debt > rule.b + STEP_BACK_US * rule.c then
      rule.debt = rule.b
      bucket.save(rule, now)
    end
  end
end

function bucket.fits(rule, cost)
  return rule.debt + cost * rule.a <= rule.b
end

function bucket.spend(rule, cost)
  rule.debt = rule.debt + cost * rule.a
end

function bucket.refund(rule, cost)
  rule.debt = math.max(0, rule.debt - math.min(cost * rule.a, rule.b))
end

function bucket.save(rule, now)
  if rule.debt == 0 then
    redis.call('DEL', rule.key)
  else
    redis.call('SET', rule.key, text(now) .. ' ' .. text(rule.debt), 'PX', ttl_ms(rule.debt / rule.c))
  end
end

function bucket.report(rule)
  return rule.debt, 0, 0
end

-- Both windows: which one it is, how far it is gone, and how many windows ahead a stored one is believed.
local function locate(rule, now)
  rule.elapsed = now % rule.b
  rule.number = (now - rule.elapsed) / rule.b
  return math.floor(1073741824 / (rule.b * 1000)) + 1
end

-- Fixed window. Takes the limit and the window in microseconds. State: the window's number, and the count in it.
local fixed = {}

function fixed.load(rule, now)
  local believed = locate(rule, now)
  rule.count = 0
  local number, count = numbers(rule.key, '^(%d+) (%d+)$')
  if number and number >= rule.number then
    rule.count = count
    if number - rule.number > believed then
      fixed.save(rule, now)
    else
      rule.number = number
    end
  end
end

function fixed.fits(rule, cost)
  return rule.count + cost <= rule.a
end

function fixed.spend(rule, cost)
  rule.count = rule.count + cost
end

function fixed.refund(rule, cost)
  rule.count = math.max(0, rule.count - cost)
end

function fixed.save(rule, now)
  if rule.count == 0 then
    redis.call('DEL', rule.key)
  else
    local left = (rule.number + 1) * rule.b - now
    redis.call('SET', rule.key, text(rule.number) .. ' ' .. text(rule.count), 'PX', ttl_ms(left))
  end
end

function fixed.report(rule)
  return rule.number, rule.count, 0
end

-- Sliding window. Takes the limit and the window in microseconds. State: the window's number, the count in the window
-- before it, and the count in it.
local sliding = {}

function sliding.load(rule, now)
  local believed = locate(rule, now)
  rule.previous, rule.current = 0, 0
  local number, previous, current = numbers(rule.key, '^(%d+) (%d+) (%d+)$')
  if not number or number < rule.number - 1 then
    return
  elseif number == rule.number - 1 then
    rule.previous = current
    return
  end
  rule.previous, rule.current = previous, current
  if number - rule.number > believed then
    sliding.save(rule, now)
  elseif number > rule.number then
    rule.number, rule.elapsed = number, 0
  end
end

-- previous * (window - elapsed) + (current + cost) * window <= limit * window, without a product beyond 2^53.
function sliding.fits(rule, cost)
  local room = rule.a - rule.current - cost
  if room < 0 then
    return false
  elseif rule.previous <= room then
    return true
  end
  local rest = rule.b % rule.previous
  local whole = (rule.b - rest) / rule.previous
  return rule.b - rule.elapsed <= room * whole + math.floor(room * rest / rule.previous)
end

function sliding.spend(rule, cost)
  rule.current = rule.current + cost
end

function sliding.refund(rule, cost)
  local from_current = math.min(cost, rule.current)
  rule.current = rule.current - from_current
  rule.previous = math.max(0, rule.previous - (cost - from_current))
end

function sliding.save(rule, now)
  if rule.previous == 0 and rule.current == 0 then
    redis.call('DEL', rule.key)
  else
    local left = (rule.number + 2) * rule.b - now
    local value = text(rule.number) .. ' ' .. text(rule.previous) .. ' ' .. text(rule.current)
    redis.call('SET', rule.key, value, 'PX', ttl_ms(left))
  end
end

function sliding.report(rule)
  return rule.number, rule.previous, rule.current
end

-- Sliding log. Takes the limit and the window in microseconds. State: a sorted set with a member for each token spent,
-- scored by when; `<score>:<four digits>` tells those of one microsecond apart.
local log = {}

local function log_add(rule, at, first, count)
  local members = {}
  for index = first, first + count - 1 do
    members[#members + 1] = text(at)
    members[#members + 1] = string.format('%.0f:%04d', at, index)
  end
  redis.call('ZADD', rule.key, unpack(members))
end

function log.load(rule, now)
  rule.now, rule.at, rule.spent = now, now, 0
  local newest = redis.call('ZRANGE', rule.key, -1, -1, 'WITHSCORES')[2]
  rule.newest = tonumber(newest or 0)
  if rule.newest > now + STEP_BACK_US then
    local count = math.min(redis.call('ZCARD', rule.key), rule.a)
    redis.call('DEL', rule.key)
    log_add(rule, now, 0, count)
    redis.call('PEXPIRE', rule.key, ttl_ms(rule.b))
    rule.newest = now
  end
  rule.at = math.max(now, rule.newest)
  rule.live = newest and redis.call('ZCOUNT', rule.key, '(' .. text(now - rule.b), '+inf') or 0
end

function log.fits(rule, cost)
  return rule.live + cost <= rule.a
end

function log.spend(rule, cost)
  rule.live = rule.live + cost
  rule.spent = cost
  rule.newest = rule.at
end

function log.refund(rule, cost)
  rule.spent = -math.min(cost, rule.live)
end

function log.save(rule, now)
  redis.call('ZREMRANGEBYSCORE', rule.key, '-inf', text(now - rule.b))
  if rule.spent > 0 then
    local at = text(rule.at)
    log_add(rule, rule.at, redis.call('ZCOUNT', rule.key, at, at), rule.spent)
    redis.call('PEXPIRE', rule.key, ttl_ms(rule.at + rule.b - now))
  elseif rule.spent < 0 then
    redis.call('ZREMRANGEBYRANK', rule.key, text(rule.spent), -1)
  end
end

-- What is left, how long until the cost fits, and how long until all is forgotten.
function log.report(rule, cost)
  local wait, reset = 0, 0
  local missing = rule.live + math.min(cost, rule.a) - rule.a
  if missing > 0 then
    local rank = redis.call('ZCARD', rule.key) - rule.live + missing - 1
    local score = redis.call('ZRANGE', rule.key, rank, rank, 'WITHSCORES')[2]
    wait = score + rule.b - rule.now
  end
  if rule.live > 0 then
    reset = rule.newest + rule.b - rule.now
  end
  return math.max(0, rule.a - rule.live), wait, reset
end

local kinds = { b = bucket, f = fixed, s = sliding, l = log }

-- The rules of this call, whose arguments begin after `skipped` others.
local function load_rules(skipped, now)
  local rules = {}
  for index, key in ipairs(KEYS) do
    local first = skipped + (index - 1) * 5
    local rule = {
      key = key,
      kind = kinds[ARGV[first + 1]],
      shadow = ARGV[first + 2] == '1',
      a = tonumber(ARGV[first + 3]),
      b = tonumber(ARGV[first + 4]),
      c = tonumber(ARGV[first + 5]),
    }
    rule.kind.load(rule, now)
    rules[index] = rule
  end
  return rules
end

