-- Takes a mark for a while, unless it is taken.
--
-- KEYS  the mark
-- ARGV  how long, in microseconds; the time (reserved for tests: otherwise empty)
-- Reply 1 if it was free, the time, until when it is taken

local now = time_us(ARGV[2])
local taken = numbers(KEYS[1], '^(%d+)$')
if taken and taken > now then
  return { 0, now, taken }
end
local free = now + tonumber(ARGV[1])
if free > now then
  redis.call('SET', KEYS[1], text(free), 'PX', ttl_ms(free - now))
end
return { 1, now, free }
