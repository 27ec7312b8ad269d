// Threads of a step, over the figures that a kernel gives of a machine: how soon they make way, and come back.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createStepThreads } from '../../../engine/batching/step-threads.ts'

interface Beside {
  /** Programs that never rest. */
  loops?: number
  /** Such programs at the lowest priority, which make way for a thread at once. */
  nice?: number
  /** Such programs that have a lower priority but take a good part of a core from a thread. */
  tough?: number
}

/** A machine by the fair scheduler's rule: who shares a core with one other waits half of the time. */
function machine(cores: number) {
  let at = 0
  const total = { used: 0, waited: 0, idle: 0, nice: 0 }
  const beside: Required<Beside> = { loops: 0, nice: 0, tough: 0 }
  const choice = createStepThreads(
    cores,
    {
      threads: () => ({ used_ms: total.used, waited_ms: total.waited }),
      cores: () => ({ idle_ms: total.idle, nice_ms: total.nice }),
    },
    () => at,
  )
  const pass = (ms: number, threads: number) => {
    const { loops, nice, tough } = beside
    const short = Math.max(0, threads + loops + tough - cores)
    at += ms
    total.used += ms * (threads - short / 2)
    total.waited += (ms * short) / 2
    const left = Math.max(0, cores - threads - loops)
    const low = Math.min(left, nice + tough)
    total.nice += ms * low
    total.idle += ms * (left - low)
  }
  return {
    choice,
    now: () => at,
    beside(what: Beside) {
      Object.assign(beside, { loops: 0, nice: 0, tough: 0, ...what })
    },
    rest: (ms: number) => pass(ms, 0),
    /** Computes steps for so long. Returns the threads of each. */
    run(ms: number, step_ms = 8): number[] {
      const chosen: number[] = []
      for (const end = at + ms; at < end; ) {
        const threads = choice.threads()
        chosen.push(threads)
        // The time of a step beside its waits.
        pass(step_ms, threads)
        choice.record(threads, step_ms)
      }
      return chosen
    },
  }
}

test('alone, and beside trainings at the lowest priority, every step has all threads', () => {
  for (const cores of [1, 2, 8]) {
    const { run, rest, beside } = machine(cores)
    assert.deepEqual(new Set(run(2000)), new Set([cores]))
    rest(5000)
    beside({ nice: cores })
    assert.deepEqual(new Set(run(2000)), new Set([cores]))
  }
})

test('beside one loop a step has a thread less within 64 ms, beside a loop per core one', () => {
  const two = machine(2)
  two.run(500)
  two.beside({ loops: 1 })
  const chosen = two.run(5000)
  assert.deepEqual(new Set(chosen.slice(8)), new Set([1]), 'it tries no second thread while the loop runs')
  const eight = machine(8)
  eight.beside({ loops: 3 })
  eight.run(200)
  assert.deepEqual(new Set(eight.run(5000)), new Set([5]))
  eight.beside({ loops: 8 })
  eight.run(400)
  assert.deepEqual(new Set(eight.run(5000)), new Set([1]))
})

test('work of the service itself, short or a part of a core, takes no thread away', () => {
  const { run, beside } = machine(2)
  for (let answer = 0; answer < 100; answer++) {
    beside({ loops: 1 })
    assert.deepEqual(new Set(run(30)), new Set([2]), `the beginning of answer ${answer}`)
    beside({})
    assert.deepEqual(new Set(run(300 + answer)), new Set([2]), `answer ${answer}`)
  }
})

test('all threads are back within 120 ms after the load ends, also if no step has run meanwhile', () => {
  for (const cores of [2, 8]) {
    const { run, rest, beside } = machine(cores)
    beside({ loops: cores })
    run(60_000)
    beside({})
    run(120)
    assert.deepEqual(new Set(run(2000)), new Set([cores]))
    beside({ loops: cores })
    run(1000)
    beside({})
    rest(3000)
    assert.equal(run(1000).at(0), cores, 'the first step after a rest knows of it')
  }
})

test('a program that yields its core in part makes it try, ever more rarely', () => {
  const { run, beside } = machine(2)
  beside({ tough: 1 })
  run(60_000)
  const chosen = run(60_000)
  const tries = chosen.filter((threads) => threads === 2).length
  assert.ok(tries > 0 && tries / chosen.length < 0.015, `${tries} of ${chosen.length} steps`)
  beside({})
  run(250)
  assert.deepEqual(new Set(run(1000)), new Set([2]))
})
