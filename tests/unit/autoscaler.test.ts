// The autoscaler: single decisions, and hours of load on a virtual clock.
import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { ServeRule } from '../../bench/capacity/ray-serve-rule.ts'
import {
  addObservation,
  autoscale,
  type Observation,
  type ScalingPolicy,
} from '../../server/features/scaling/autoscaler.ts'
import { type Outcome, simulate } from '../support/scaling-simulation.ts'
import { recordedTrace, syntheticTraces } from '../support/scaling-traces.ts'

const policy: ScalingPolicy = {
  min_replicas: 1,
  max_replicas: 12,
  target_requests: 8,
  target_utilization: null,
  up_cooldown_ms: 30_000,
  down_cooldown_ms: 300_000,
}
const base: Observation = {
  at: 0,
  in_flight: 0,
  waiting: 0,
  arrived: 0,
  completed: 0,
  utilization: null,
  ready: 1,
  starting: 0,
}
/** A minute of the same observation each second, which ends at `now`. */
const minute = (now: number, observation: Partial<Observation>) =>
  Array.from({ length: 60 }, (_, n) => ({ ...base, ...observation, at: now - (59 - n) * 1000 }))
const sumOf = (all: Observation[], field: 'arrived') => all.reduce((sum, observation) => sum + observation[field], 0)
const now = 10_000_000
const ask = (observation: Partial<Observation>, more: Partial<Parameters<typeof autoscale>[0]> = {}) =>
  autoscale({
    now,
    policy,
    observations: minute(now, observation),
    replicas: 1,
    start_ms: 20_000,
    decisions: [],
    ...more,
  })

describe('a decision', () => {
  test('the larger demand wins: requests, or utilization', () => {
    const withBoth = { ...policy, target_utilization: 0.5 }
    const load = { in_flight: 6, completed: 1, arrived: 1, ready: 2 }
    assert.equal(ask({ ...load, utilization: 0.2 }, { policy: withBoth, replicas: 2 }).replicas, 2)
    const busy = ask({ ...load, utilization: 0.9 }, { policy: withBoth, replicas: 2 })
    assert.equal(busy.replicas, 4)
    assert.match(busy.reason, /90 % of 2 replicas busy, target 50 %/)
    const crowded = ask({ in_flight: 40, ready: 2, utilization: 0.1 }, { policy: withBoth, replicas: 2 })
    assert.ok(crowded.replicas >= 5)
    assert.match(crowded.reason, /40 requests at a time.* at 8 a replica take/)
  })

  test('bounds hold, and are the reason that is given', () => {
    assert.deepEqual(ask({}, { replicas: 0 }), { replicas: 1, reason: 'min_replicas is 1.' })
    assert.deepEqual(ask({}, { replicas: 13 }), { replicas: 12, reason: 'max_replicas is 12.' })
    const least = { replicas: 1, reason: 'The load takes no more, and min_replicas is 1.' }
    assert.deepEqual(ask({}, { replicas: 1 }), least)
    const most = ask({ in_flight: 500 }, { replicas: 3 })
    assert.equal(most.replicas, 12)
    assert.match(most.reason, /max_replicas is 12\.$/)
  })

  test('from zero the first request starts a replica at once, whatever was decided before', () => {
    const zero = { ...policy, min_replicas: 0 }
    const decisions = [
      { at: now - 2000, from: 0, to: 1 },
      { at: now - 1000, from: 1, to: 0 },
    ]
    assert.equal(ask({ ready: 0 }, { policy: zero, replicas: 0 }).replicas, 0)
    const first = ask({ ready: 0, waiting: 1 }, { policy: zero, replicas: 0, decisions })
    assert.deepEqual(first, { replicas: 1, reason: '1 request at 8 a replica takes 1 replica.' })
    assert.equal(ask({ ready: 0, waiting: 30 }, { policy: zero, replicas: 0 }).replicas, 4)
  })

  test('zero comes only after a cooldown without any request', () => {
    const zero = { ...policy, min_replicas: 0, down_cooldown_ms: 30_000 }
    assert.equal(ask({}, { policy: zero }).replicas, 0)
    const once = minute(now, {})
    once[40]!.arrived = 1
    const recent = { replicas: 1, reason: 'There were requests in the last 30 s.' }
    assert.deepEqual(ask({}, { policy: zero, observations: once }), recent)
    const running = minute(now, {})
    running.at(-1)!.in_flight = 1
    assert.deepEqual(ask({}, { policy: zero, observations: running }), recent)
  })

  test('without a cooldown a load still has its replicas, until the moment in which there is none', () => {
    const none = { ...policy, min_replicas: 0, down_cooldown_ms: 0 }
    const busy = { in_flight: 12, arrived: 3, completed: 3, ready: 2 }
    assert.equal(ask(busy, { policy: none, replicas: 2 }).replicas, 2)
    const over = [...minute(now - 1000, busy), { ...base, at: now }]
    assert.equal(ask({}, { policy: none, replicas: 2, observations: over }).replicas, 0)
  })

  test('a cooldown of a day keeps thousands of observations, not hundreds of thousands, and all that came', () => {
    const daily = { ...policy, min_replicas: 0, down_cooldown_ms: 24 * 3_600_000 }
    const observations: Observation[] = []
    const days = Array.from({ length: 4 * 86_400 }, (_, n) => ({ ...base, at: n * 1000, arrived: n % 1000 ? 0 : 1 }))
    for (const day of days) addObservation(observations, day, daily)
    const { at } = days.at(-1)!
    assert.ok(observations.length < 30_000, `${observations.length}`)
    assert.equal(sumOf(observations, 'arrived'), sumOf(days, 'arrived'))
    assert.deepEqual(observations.slice(-3600), days.slice(-3600), 'those of an hour as they were')
    const decisions = [9, 8, 7, 6].flatMap((cooldowns) => [
      { at: at - cooldowns * daily.down_cooldown_ms, from: 3, to: 2 },
      { at: at - (cooldowns - 0.5) * daily.down_cooldown_ms, from: 2, to: 3 },
    ])
    assert.equal(ask({}, { now: at, policy: daily, replicas: 3, observations, decisions }).replicas, 1)
  })

  test('a scale-down that was taken back doubles the time for which load must have been low', () => {
    const calm = { ...base, ready: 3 }
    const crowded = { ...calm, in_flight: 24, arrived: 6, completed: 6 }
    const observations = Array.from({ length: 900 }, (_, n) => ({
      ...(n < 800 ? crowded : calm),
      at: now - (899 - n) * 1000,
    }))
    const regret = (ms: number) => [
      { at: now - ms - 100_000, from: 3, to: 2 },
      { at: now - ms, from: 2, to: 3 },
    ]
    const after = (...decisions: ReturnType<typeof regret>) =>
      ask({}, { replicas: 3, observations, decisions }).replicas
    assert.equal(after(), 1, 'low for longer than a quarter of the cooldown')
    assert.equal(after(...regret(600_000)), 3, 'not for half of it')
  })

  test('cooldowns hold, and the reason says until when', () => {
    const up = ask({ in_flight: 40 }, { decisions: [{ at: now - 10_000, from: 0, to: 1 }] })
    assert.equal(up.replicas, 1)
    assert.match(up.reason, /The next scale-up is due in 20 s/)
    const down = ask({}, { replicas: 3, decisions: [{ at: now - 100_000, from: 1, to: 3 }] })
    assert.equal(down.replicas, 3)
    assert.match(down.reason, /The next scale-down is due in 2\d\d s/)
  })

  test('without any observation nothing changes', () => {
    assert.equal(ask({}, { observations: [], replicas: 2 }).replicas, 2)
  })
})

/**
 * What other rules need on these traces, as their sources state them (docs/decisions/024-autoscaler.md):
 * replica-seconds, mean wait in seconds, changes.
 */
const others: Record<string, Record<string, [replica_seconds: number, mean_wait_s: number, changes: number]>> = {
  'Ray Serve': {
    steady: [30_726.5, 0.955, 23],
    spikes: [55_866, 8.62, 45],
    'short spikes': [78_308.5, 6.243, 53],
    'slow ramps': [101_226, 0.916, 67],
    flapping: [62_142, 2.707, 36],
    'slow flapping': [104_249.5, 2.671, 64],
    'a day': [347_371.5, 0.863, 196],
    recorded: [154.5, 0.558, 3],
  },
  'KEDA and HPA': {
    steady: [31_931, 0.43, 22],
    spikes: [63_278.5, 5.246, 62],
    'short spikes': [81_877.5, 3.639, 69],
    'slow ramps': [86_058.5, 0.366, 54],
    flapping: [45_389, 0.702, 39],
    'slow flapping': [101_230, 1.452, 88],
    'a day': [301_044, 0.35, 161],
    recorded: [150, 8.991, 8],
  },
}

describe('over hours', () => {
  let rows: (Outcome & { trace: string; policy: ScalingPolicy })[]
  before(() => {
    const traces = [...syntheticTraces(1), recordedTrace]
    // Without the long ones it takes a fifth of the time.
    rows = (process.env.TEST_FULL ? traces : traces.filter(({ duration_s }) => duration_s <= 3 * 3600)).map((trace) => {
      const merged = { ...policy, ...trace.policy }
      return { trace: trace.name, policy: merged, ...simulate(trace, merged) }
    })
  })

  test('no target is missed for longer than cooldown, start-up and the time in which a spike is known', () => {
    for (const { trace, longest_miss_s, policy } of rows)
      assert.ok(longest_miss_s <= policy.up_cooldown_ms / 1000 + 20 + 10, `${trace}: ${longest_miss_s} s`)
  })

  test('nothing flaps: no scale-down comes within its cooldown of any change, no scale-up within its own', () => {
    for (const { trace, changes, policy } of rows)
      changes.forEach(({ at, from, to }, index) => {
        const earlier = changes.slice(0, index)
        const last = to < from ? earlier.at(-1) : earlier.findLast((change) => change.to > change.from)
        const cooldown = (to < from ? policy.down_cooldown_ms : policy.up_cooldown_ms) / 1000
        if (last && from > 0) assert.ok(at - last.at >= cooldown, `${trace} at ${at}: ${from} to ${to}`)
      })
  })

  test('load that goes up and down within the cooldown makes fewer changes than under the other rules', () => {
    const { changes } = rows.find(({ trace }) => trace === 'flapping')!
    const theirs = Object.values(others).map(({ flapping }) => flapping![2])
    assert.ok(changes.length < 0.7 * Math.min(...theirs), `${changes.length} to ${theirs}`)
  })

  test('fewer replica-seconds than Ray Serve and KEDA need, at no more waiting', () => {
    for (const [rule, figures] of Object.entries(others)) {
      const [ours, theirs] = [
        rows.reduce((sum, { replica_seconds }) => sum + replica_seconds, 0),
        rows.reduce((sum, { trace }) => sum + figures[trace]![0], 0),
      ]
      assert.ok(ours < 0.95 * theirs, `${rule}: ${ours} to ${theirs}`)
      for (const { trace, replica_seconds, mean_wait_s } of rows) {
        const [their_seconds, their_wait_s] = figures[trace]!
        const figuresOfBoth =
          `${trace}: ${replica_seconds}, ${mean_wait_s} s; ` + `${rule}: ${their_seconds}, ${their_wait_s} s`
        assert.ok(mean_wait_s <= 1.05 * their_wait_s + 0.01, figuresOfBoth)
        // Ray Serve lets requests wait more than twice as long where it needs fewer.
        assert.ok(replica_seconds <= 1.05 * their_seconds, figuresOfBoth)
      }
    }
  })

  test('the figures of Ray Serve are those of its rule, which the capacity simulation calls too', () => {
    for (const trace of [...syntheticTraces(1).filter(({ name }) => name === 'flapping'), recordedTrace]) {
      const merged = { ...policy, ...trace.policy }
      const rule = new ServeRule({
        min_replicas: merged.min_replicas,
        max_replicas: merged.max_replicas,
        target_ongoing_requests: merged.target_requests,
        upscale_delay_s: merged.up_cooldown_ms / 1000,
        downscale_delay_s: merged.down_cooldown_ms / 1000,
        look_back_period_s: 30,
      })
      const { replica_seconds, mean_wait_s, changes } = simulate(trace, merged, ({ now, observations, replicas }) => {
        const { in_flight, waiting } = observations.at(-1)!
        return { replicas: rule.decide(now / 1000, in_flight + waiting, replicas), reason: '' }
      })
      const figures = [replica_seconds, Number(mean_wait_s.toFixed(3)), changes.length]
      assert.deepEqual(figures, others['Ray Serve']![trace.name], trace.name)
    }
  })

  test('a replica less than the target allows is noticed by these tests', () => {
    assert.ok(simulate(syntheticTraces(1)[0]!, { ...policy, max_replicas: 2 }).mean_wait_s > 10)
  })
})
