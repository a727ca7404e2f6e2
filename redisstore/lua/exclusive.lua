-- Put behind judge.lua for calls that are exclusive: they go to the data they
-- are meant for, or nowhere. The replication id changes when a replica is
-- promoted; a replica has that of its primary, so the role is looked at, too.
-- (On a Cluster the incarnation has the ids of all shards.)
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('READONLY this is no primary')
end
if ARGV[#ARGV] ~= '' then
  local id = string.match(info, 'master_replid:(%x+)')
  if not id or not string.find(',' .. ARGV[#ARGV] .. ',', ',' .. id .. ',', 1, true) then
    return redis.error_reply('EPOCH other data is here: ' .. (id or '?'))
  end
end
