-- What has to be known of a server before it is used: its clock, whether it
-- has sharded channels (releases decide by the same name), and whether %d
-- formats 64-bit numbers. KEYS[1] only leads to the node.
local clock = redis.call('TIME')
return {
  clock[1] * 1000000 + clock[2],
  redis.REDIS_VERSION_NUM and 1 or 0,
  string.format('%d', 4503599627370496) == '4503599627370496' and 1 or 0,
}
