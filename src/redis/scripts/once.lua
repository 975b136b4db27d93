-- Takes a mark for a while, unless somebody else has it.
--
-- KEYS  the mark
-- ARGV  how long, in microseconds; the time (reserved for tests: otherwise empty); whose it is: hexadecimal digits that
--       nobody else uses, the same for a call that is repeated because its answer was lost
-- Reply 1 if it was free or is the caller's own, the time, until when it is taken

local now = time_us(ARGV[2])
local value = redis.call('GET', KEYS[1])
if value then
  local taken, whose = string.match(value, '^(%d+) (%x+)$')
  if not taken then
    error('the key ' .. KEYS[1] .. ' holds something else than a tollgate state')
  end
  taken = tonumber(taken)
  if taken > now then
    return { whose == ARGV[3] and 1 or 0, now, taken }
  end
end
local free = now + tonumber(ARGV[1])
if free > now then
  redis.call('SET', KEYS[1], text(free) .. ' ' .. ARGV[3], 'PX', ttl_ms(free - now))
end
return { 1, now, free }
