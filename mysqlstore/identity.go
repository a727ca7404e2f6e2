package mysqlstore

const (
	// identity is an SQL expression for the server that executes a statement: a
	// text of bytes that is another one after a failover, and the same after a
	// restart. It is part of the statement that depends on it, so that there is
	// no moment in between.
	//
	// It is one text for all servers and versions, which they read in their own
	// way: two processes that had put it together by what they knew of a server
	// at different times would take it for two. MySQL has a UUID that is its data
	// directory's. MariaDB has none; its server_uid is made of the address of a
	// network card, and so a new one with each start of a container. What
	// replicates has a server_id of its own there, and the rest is for copies.
	identity = "CAST(COALESCE(/*!80000 @@server_uuid,*/ CONCAT_WS('/',@@global.server_id,@@hostname,@@port)) AS BINARY)"
	// writable tells a primary from a replica that is set up as one should be, also
	// to users whom read_only does not stop. The variables are numbers or words.
	writable = "(CONCAT(@@global.read_only) IN ('0','OFF') AND CONCAT(@@global.innodb_read_only) IN ('0','OFF'))"
)
