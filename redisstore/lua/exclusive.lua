-- Put behind judge.lua for calls that are exclusive: they go to the data they
-- are meant for, or nowhere. The replication id changes when a replica is
-- promoted; a replica has that of its primary, so the role is looked at, too.
-- (On a Cluster the incarnation has the ids of all shards.)
-- KEYS, the last, but on a Cluster: the marker, see probe_chain.lua. With the keys
-- of live locks it has gone, too. What follows does not see it.
local marker = string.sub(KEYS[#KEYS], -7) == ':marker' and table.remove(KEYS)
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('READONLY this is no primary')
end
if ARGV[#ARGV] ~= '' then
  local id = string.match(info, 'master_replid:(%x+)') or '?'
  if marker then
    id = id .. '-' .. (string.match(redis.call('GET', marker) or '', '^(%x+) %d+$') or '?')
  end
  if not string.find(',' .. ARGV[#ARGV] .. ',', ',' .. id .. ',', 1, true) then
    return redis.error_reply('EPOCH other data is here: ' .. id)
  end
end
