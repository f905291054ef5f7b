"""What happens in Redis in one step: Lua scripts over the keys of one run.

    rlctl:{RUN}:epoch       how often the run was taken over; only the pool that raised it last may write
    rlctl:{RUN}:owner       who that is; runs out unless renewed, and then a waiting pool takes over
    rlctl:{RUN}:head        hash: seq (newest commit), snapshot ("a" or "b"), snapshot_seq, writing
    rlctl:{RUN}:journal     stream: entry SEQ-PART of commit SEQ: after (the commit before it), frames
    rlctl:{RUN}:snapshot:a  hash: number -> chunk of the state after commit snapshot_seq (and :b, in turn)

All keys of a run have the hash tag {RUN}: in a cluster they lie on one node. A command that was sent before its
connection broke may arrive late, after the pool has tried again or given up: every script is safe to run twice, and
does nothing once the epoch or the sequence has moved on.

Answers: "OK"; "FENCED": another pool has taken over; "LOST": Redis has forgotten what it acknowledged; "STALE": it is
too late for this.
"""

WHEN_FULL = "#!lua flags=allow-oom\n"
"""First line of a script that must work in a full Redis: it stores next to nothing, or frees more than it takes."""

_FENCE = """
local epoch = redis.call('GET', KEYS[1])
if not epoch then return 'LOST' end
if epoch ~= ARGV[1] then return 'FENCED' end
"""

TAKE = """
local held = redis.call('GET', KEYS[2])
if held and held ~= ARGV[3] then return {0, held} end
local epoch = redis.call('INCR', KEYS[1])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {epoch, ''}
"""
"""KEYS epoch, owner; ARGV new owner, lease in ms, an owner known to be dead. -> {epoch or 0, who holds it}"""

RENEW = (
    _FENCE
    + """
if redis.call('GET', KEYS[2]) == ARGV[2] then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
else
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
end
return 'OK'
"""
)
"""KEYS epoch, owner; ARGV epoch, owner, lease in ms. A lease that lapsed, with nobody to take it, is taken up again."""

RELEASE = (
    _FENCE
    + """
if redis.call('GET', KEYS[2]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
return 'OK'
"""
)
"""KEYS epoch, owner; ARGV epoch, owner."""

APPEND = (
    _FENCE
    + """
local head, seq, after = tonumber(redis.call('HGET', KEYS[2], 'seq') or '0'), tonumber(ARGV[2]), tonumber(ARGV[3])
if head == seq then return 'OK' end
if head > seq then return 'STALE' end
if head < after then return 'LOST' end
for i = 4, #ARGV do
  redis.call('XADD', KEYS[3], ARGV[2] .. '-' .. (i - 4), 'after', ARGV[3], 'frames', ARGV[i])
end
redis.call('HSET', KEYS[2], 'seq', ARGV[2])
if head > after then
  for _, entry in ipairs(redis.call('XRANGE', KEYS[3], after + 1, seq - 1)) do redis.call('XDEL', KEYS[3], entry[1]) end
end
return 'OK'
"""
)
"""KEYS epoch, head, journal; ARGV epoch, seq, the commit before it, frames... Commits in between were refused to those
who asked for them because Redis did not answer in time; one that was stored nevertheless is deleted here."""

BEGIN_SNAPSHOT = (
    _FENCE
    + """
if redis.call('HGET', KEYS[2], 'snapshot') == ARGV[3] then return 'STALE' end
redis.call('HSET', KEYS[2], 'writing', ARGV[2])
redis.call('UNLINK', KEYS[3])
return 'OK'
"""
)
"""KEYS epoch, head, the other snapshot; ARGV epoch, seq, its letter."""

PUT_CHUNK = (
    _FENCE
    + """
if redis.call('HGET', KEYS[2], 'writing') ~= ARGV[2] then return 'STALE' end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
return 'OK'
"""
)
"""KEYS epoch, head, snapshot; ARGV epoch, seq, number, chunk."""

END_SNAPSHOT = (
    _FENCE
    + """
if redis.call('HGET', KEYS[2], 'snapshot_seq') == ARGV[2] then return 'OK' end
if redis.call('HGET', KEYS[2], 'writing') ~= ARGV[2] then return 'STALE' end
if redis.call('HLEN', KEYS[3]) ~= tonumber(ARGV[4]) then return 'STALE' end
redis.call('HSET', KEYS[2], 'snapshot', ARGV[3], 'snapshot_seq', ARGV[2])
redis.call('HDEL', KEYS[2], 'writing')
redis.call('UNLINK', KEYS[4])
redis.call('XTRIM', KEYS[5], 'MINID', '=', tonumber(ARGV[2]) + 1)
return 'OK'
"""
)
"""KEYS epoch, head, new snapshot, old snapshot, journal; ARGV epoch, seq, letter, number of chunks. Frees what it
replaces."""
