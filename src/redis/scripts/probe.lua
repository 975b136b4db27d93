-- Shows that the server runs scripts that write.
--
-- KEYS  a key of the probe's own

return redis.call('SET', KEYS[1], redis.call('TIME')[1], 'PX', 1000)
