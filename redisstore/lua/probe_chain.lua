-- Asks whether locks can be taken here, by writing, and on what data.
-- KEYS: 1 a key of its own. ARGV: 1 how long it lives, in ms. Replies the
-- replication id and the server time in us.
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('READONLY this is no primary')
end
redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
local clock = redis.call('TIME')
return {string.match(info, 'master_replid:(%x+)') or '', clock[1] * 1000000 + clock[2]}
