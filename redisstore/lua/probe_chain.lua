-- Asks whether locks can be taken here, by writing, on what data, and whether
-- keys are safe.
-- KEYS: 1 the marker, "nonce epoch"; perhaps one that is not looked at. ARGV: 1 the nonce of a new one; 2 the latest
-- epoch known; 3 how long the marker lives, in ms. Replies the replication id, the
-- nonce, the epoch, maxmemory and maxmemory-policy; of these two the
-- error and '' where they may not be read; and the server time in us.
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('READONLY this is no primary')
end
local nonce, epoch = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+) (%d+)$')
epoch = tonumber(epoch)
if not epoch or epoch >= 16384 then nonce, epoch = ARGV[1], 0 end
epoch = math.max(epoch, tonumber(ARGV[2]))
redis.call('SET', KEYS[1], nonce .. ' ' .. string.format('%d', epoch), 'PX', ARGV[3])
local limit, policy = '', ''
local memory = redis.pcall('INFO', 'memory')
if type(memory) == 'string' then
  limit = string.match(memory, 'maxmemory:(%d+)') or ''
  policy = string.match(memory, 'maxmemory_policy:([%w-]+)') or ''
else
  limit = memory.err
end
local clock = redis.call('TIME')
return {string.match(info, 'master_replid:(%x+)'), nonce, epoch, limit, policy, clock[1] * 1000000 + clock[2]}
