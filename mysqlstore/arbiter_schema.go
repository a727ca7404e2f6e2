package mysqlstore

// modeTable has one row for each namespace whose locks are kept by a chain of
// stores: the mode in force. changed_at and reason are for people.
const modeTable = `CREATE TABLE IF NOT EXISTS lock_mode (
  namespace   VARBINARY(32)     NOT NULL,
  epoch       SMALLINT UNSIGNED NOT NULL,
  phase       VARBINARY(8)      NOT NULL,
  tier        VARBINARY(8)      NOT NULL,
  incarnation VARBINARY(4096)   NOT NULL,
  server      VARBINARY(512)    NOT NULL,
  term        BIGINT UNSIGNED   NOT NULL,
  drift       SMALLINT UNSIGNED NOT NULL,
  reason      VARBINARY(512)    NOT NULL,
  changed_at  DATETIME(6)       NOT NULL,
  PRIMARY KEY (namespace)
) ENGINE=InnoDB`

// permitTable has one row for each member of a chain. It is not lock_member,
// whose rows go when somebody thinks that a process is dead: here only the
// machine of degrade says when a row may go, since a switch waits for it.
// digest has degrade.MaxDigest bytes at most, and digest_sum is a hash of it.
const permitTable = `CREATE TABLE IF NOT EXISTS lock_permit (
  namespace   VARBINARY(32)     NOT NULL,
  member      VARBINARY(64)     NOT NULL,
  epoch       SMALLINT UNSIGNED NOT NULL,
  acked_epoch SMALLINT UNSIGNED NOT NULL,
  beat        BIGINT UNSIGNED   NOT NULL,
  redis_down  TINYINT           NOT NULL,
  redis_up    TINYINT           NOT NULL,
  incarnation VARBINARY(4096)   NOT NULL,
  digest      VARBINARY(4600)   NOT NULL,
  digest_sum  VARBINARY(32)     NOT NULL,
  app         VARBINARY(64)     NOT NULL,
  host        VARBINARY(255)    NOT NULL,
  pid         BIGINT            NOT NULL,
  seen_at     DATETIME(6)       NOT NULL,
  PRIMARY KEY (namespace, member)
) ENGINE=InnoDB`
