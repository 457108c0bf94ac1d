"""Operations worked by hand: what becomes of them, as the specification says it.

A case is ``KEYS RULE(NEED), lookback N: EVENTS -> STATUS RESOLVED_AT MATCHED MISSING_KEYS``. The operation is called o
and lives from 10 to 20 ms. ``b14=0.5`` is an event on key b at 14 ms with that value, ``fail:a12`` a control event,
``extend:a15=8`` one by 8 ms, ``a12#x`` has the event id x, ``a12@o`` names the operation o. Of missing keys ``-`` is an
empty list, and ``null`` none at all.
"""

CASES = """
# each criterion holds at the first time it can
ab any_key:  -> EXPIRED 20 0 ab
ab any_key: b15 a13 -> COMPLETED 13 1 b
ab all_keys: a13 a14 b15 b16 -> COMPLETED 15 3 -
ab all_keys: a13 a14 -> EXPIRED 20 2 b
aab all_keys: a13 b14 -> COMPLETED 14 2 -
abc quorum(2): a13 a14 c15 b16 -> COMPLETED 15 3 b
aab quorum(2): a13 a14 -> EXPIRED 20 2 b
ab quorum(3): a13 b14 -> EXPIRED 20 2 -
ab count(3): a13 a14 a15 a16 -> COMPLETED 15 3 null
aa count(2): a13 -> EXPIRED 20 1 null
ab sum_at_least(1): a13=0.5 b14=0.25 a15=0.25 a16=9 -> COMPLETED 15 3 null
ab sum_at_least(1): a13 b14=0.75 -> EXPIRED 20 2 null
ab sum_at_least(5): a13=inf -> COMPLETED 13 1 null
ab until_deadline: b15 a13 b20 a21 -> COMPLETED 20 3 -
ab until_deadline: b20 -> COMPLETED 20 1 a
ab until_deadline: a9 a21 -> EXPIRED 20 0 ab
# a level is reached by the running maximum, which has a history; never before created
a level(1): a12=0.5 a13=1 a14=2 -> COMPLETED 13 2 -
a level(1): a12=0.5 a13=0.75 -> EXPIRED 20 2 a
ab level(a=1,b=2): a12=1 b13=1 b14=2 a15=0 -> COMPLETED 14 3 -
ab level(a=1,b=2): a12=2 b13=1 -> EXPIRED 20 2 b
a level(1): a3=1 -> COMPLETED 10 0 -
a level(1): a3=1 a10=0 a11=0 -> COMPLETED 10 1 -
ab level(1): a3=5 b15=1 -> COMPLETED 15 1 -
a level(0):  -> EXPIRED 20 0 a
a level(-1): a3=-1 -> COMPLETED 10 0 -
a level(0): a12 -> EXPIRED 20 1 a
a level(1): a12=nan a13=1 -> COMPLETED 13 2 -
a level(1): a21=1 -> EXPIRED 20 0 a
# a failure settles its key, and fails the operation once hope is gone
ab any_key: fail:a12 -> EXPIRED 20 0 ab
ab any_key: fail:a12 fail:b13 -> FAILED 13 0 ab
ab any_key: fail:a12 a13 b14 -> COMPLETED 14 1 a
ab all_keys: a11 fail:a12 b13 -> COMPLETED 13 2 -
ab all_keys: a11 fail:b12 b13 -> FAILED 12 1 b
abc quorum(2): fail:a12 b13 c14 -> COMPLETED 14 2 a
abc quorum(2): fail:a12 b13 fail:c14 -> FAILED 14 1 ac
abc quorum(2): a11 fail:a12 fail:b13 c14 -> COMPLETED 14 2 b
ab quorum(3): a11 fail:a12 -> FAILED 12 1 b
ab count(2): a11 fail:a12 a13 b14 -> COMPLETED 14 2 null
ab count(3): a11 fail:a12 b13 fail:b14 -> FAILED 14 2 null
ab sum_at_least(2): a11=1.5 fail:a12 b13=0.5 -> COMPLETED 13 2 null
ab sum_at_least(2): a11=1.5 fail:a12 fail:b13 -> FAILED 13 1 null
# force and cancel settle an operation on one of its keys
ab all_keys: force:a13 -> COMPLETED 13 0 ab
ab all_keys: a12 a13 force:b13 b14 -> COMPLETED 13 2 b
ab all_keys: cancel:b13 -> CANCELLED 13 0 ab
ab all_keys: a13 cancel:b13 -> CANCELLED 13 1 b
ab all_keys: cancel:b13 force:a14 -> CANCELLED 13 0 ab
ab all_keys: force:b13 cancel:a12 -> CANCELLED 12 0 ab
ab all_keys: cancel:c13 force:c14 fail:c15 -> EXPIRED 20 0 ab
ab all_keys: cancel:a9 force:b21 -> EXPIRED 20 0 ab
ab all_keys: cancel:a20 -> CANCELLED 20 0 ab
# at one time completed wins, then failed, then cancelled
ab all_keys: a13 b13 fail:a13 fail:b13 cancel:a13 -> COMPLETED 13 2 -
ab all_keys: force:a13 fail:b13 cancel:a13 -> COMPLETED 13 0 ab
ab all_keys: fail:b13 cancel:a13 -> FAILED 13 0 ab
ab all_keys: cancel:a13 extend:a13=9 -> CANCELLED 13 0 ab
ab all_keys: cancel:a13 fail:b14 -> CANCELLED 13 0 ab
ab all_keys: fail:a12 a13 b13 -> FAILED 12 0 ab
ab all_keys: fail:a20 a20 b20 -> COMPLETED 20 2 -
# extend moves the deadline to its time plus its seconds, never back, until the deadline as it then stands
a any_key: extend:a15=8 -> EXPIRED 23 0 a
a any_key: extend:a15=3 -> EXPIRED 20 0 a
a any_key: extend:a15=8 a23 -> COMPLETED 23 1 -
a any_key: extend:a15=8 a24 -> EXPIRED 23 0 a
a any_key: extend:a20=1 -> EXPIRED 21 0 a
a any_key: extend:a21=9 -> EXPIRED 20 0 a
a any_key: extend:a15=8 extend:a23=4 -> EXPIRED 27 0 a
a any_key: extend:a15=8 extend:a24=4 -> EXPIRED 23 0 a
a any_key: extend:a15=6 extend:a15=9 extend:a15=7 -> EXPIRED 24 0 a
a any_key: extend:a15=9 extend:a16=6 -> EXPIRED 24 0 a
a any_key: extend:a15=-3 -> EXPIRED 20 0 a
a any_key: extend:a15 -> EXPIRED 20 0 a
a any_key: extend:a15=nan -> EXPIRED 20 0 a
a any_key: extend:a15=inf -> EXPIRED 20 0 a
a any_key: extend:a9=30 -> EXPIRED 20 0 a
a any_key: extend:a15=9 cancel:a22 -> CANCELLED 22 0 a
# from the creation less the lookback to the deadline itself counts
a any_key: a9 -> EXPIRED 20 0 a
a any_key: a10 -> COMPLETED 10 1 -
a any_key: a20 -> COMPLETED 20 1 -
a any_key: a21 -> EXPIRED 20 0 a
a any_key, lookback 3: a6 -> EXPIRED 20 0 a
a any_key, lookback 3: a6.999 -> EXPIRED 20 0 a
a any_key: a9.999 -> EXPIRED 20 0 a
a any_key: a19.999 -> COMPLETED 19.999 1 -
a any_key: a20.001 -> EXPIRED 20 0 a
a any_key: extend:a20.001=9 -> EXPIRED 20 0 a
a any_key, lookback 3: a7 -> COMPLETED 7 1 -
a any_key, lookback 3: a21 -> EXPIRED 20 0 a
a level(1), lookback 3: a6=0 a8=1 -> COMPLETED 10 1 -
# a need of nothing holds at the creation, and is no protection against a cancellation before it
ab sum_at_least(0): a8=1 a9=1 a10=1 -> COMPLETED 10 1 null
ab sum_at_least(0), lookback 1: a8=1 a9=1 a10=1 -> COMPLETED 10 2 null
a sum_at_least(0), lookback 5: cancel:a9 -> CANCELLED 9 0 null
a sum_at_least(0), lookback 5: fail:a9 -> COMPLETED 10 0 null
a sum_at_least(0), lookback 5: cancel:a10 -> COMPLETED 10 0 null
# of an event that is delivered again the first delivery counts, at one time the smallest value
a count(2): a15#x a12#x a17#y -> COMPLETED 17 2 null
a count(2): a15#x a12#x -> EXPIRED 20 1 null
a count(2): a12 a12 -> COMPLETED 12 2 null
a count(1): a9#x a12#x -> COMPLETED 12 1 null
a sum_at_least(2): a15=1#x a12=1#x a17=1#y -> COMPLETED 17 2 null
a sum_at_least(2): a12=2#x a12=1#x a12=3#x -> EXPIRED 20 1 null
a sum_at_least(1): a12=2#x a12=1#x a12=3#x -> COMPLETED 12 1 null
a sum_at_least(1): a12=1#x a12#x -> EXPIRED 20 1 null
ab all_keys: b12=2#x a13=2#x -> COMPLETED 13 1 -
ab quorum(2): b12=2#x a13=2#x -> COMPLETED 13 1 -
ab count(2): b12=2#x a13=2#x -> EXPIRED 20 1 null
ab sum_at_least(3): b12=2#x a13=2#x -> EXPIRED 20 1 null
ab sum_at_least(2): a12=2#x b12=1#x -> EXPIRED 20 1 null
ab sum_at_least(2): a12=1#x b12=2#x -> EXPIRED 20 1 null
ab count(1): fail:a12 a13#x b14#x -> COMPLETED 14 1 null
ab level(1): a12=1#x a13=1#x b14=1#y -> COMPLETED 14 2 -
# an event that names an operation speaks to that one alone, on a key that it watches
a any_key: a12@o -> COMPLETED 12 1 -
a any_key: a12@p -> EXPIRED 20 0 a
a any_key: cancel:a12@o -> CANCELLED 12 0 a
a any_key: cancel:b12@o -> EXPIRED 20 0 a
# a level fails with a key below it, and outlives the failure of a key that had reached it
ab level(1): a11=0.5 fail:a12 -> FAILED 12 1 ab
ab level(1): a5=1 fail:a12 b13=1 -> COMPLETED 13 1 -
ab level(1): a5=1 fail:b12 b12=0.5 -> FAILED 12 1 b
a level(1): a5=1 fail:a4 -> COMPLETED 10 0 -
# what completes on a failed key later is not matched, and at the deadline all beats expiry
ab count(9): a12 fail:a12 a12 a13 b14 -> EXPIRED 20 3 null
a any_key: fail:a20 -> FAILED 20 0 a
# what no sum takes is set aside, and a null adds nothing
a sum_at_least(1): a12=-5 a13=nan a14=1 -> COMPLETED 14 1 null
a count(2): a12=-5 a13=nan a14=1 -> COMPLETED 13 2 null
"""

DUPLICATES = """
-> 20
extend:a15=15 -> 30
extend:a15=3 -> 20
extend:a20=15 -> 35
extend:a21=15 -> 20
extend:a15=10 extend:a25=10 extend:a35=10 -> 45
extend:a15=10 extend:a26=10 -> 25
extend:a15=10 extend:a15=12 extend:a26=10 -> 36
extend:a15=15 a16 -> 30
a15 extend:a16=15 -> 20
extend:a15=15 a25 extend:a26=90 -> 30
cancel:a15 extend:a16=15 -> 20
fail:a15 extend:a16=15 -> 20
force:a15 extend:a16=15 -> 20
a15 extend:a15=15 -> 30
cancel:a15 extend:a15=15 -> 30
extend:a15=10 a25 extend:a25=15 -> 40
extend:a9=30 -> 20
extend:b15=30 -> 20
extend:a15 -> 20
extend:a15=nan -> 20
extend:a15=inf -> 20
extend:a15=-30 -> 20
"""
"""What the first row of an id receives, and the last time at which a second row of this id is its DUPLICATE."""
