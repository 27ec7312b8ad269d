// A machine whose cores other programs keep busy, or that allows this one only part of them: answers take their share
// of a core longer, not a hundred times as long.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { after, afterEach, before, test } from 'node:test'
import { allowedCores, usableCores } from '../../lib/usable-cores.ts'
import { chat, type Engine, modelName, modelPath, startEngine } from '../process/engine/engine-process.ts'
import { until } from '../support/client.ts'

const cores = usableCores()
const skip = cores < 2 && 'this machine has one core'
const loops: ChildProcess[] = []
let engine: Engine
/** Milliseconds of an answer, of one thread and of all, with nothing beside. */
let alone: { one: number; all: number }

/** Starts the engine as the service does: by default with a thread per core. */
const start = (threads: number) =>
  startEngine(['--model', `${modelName}=${modelPath}`, '--threads', String(threads), '--no-speculation'])

before(async () => {
  if (skip) return
  const one = await start(1)
  const single = (await answers(one, 6)).sort((a, b) => a - b)[1]!
  await one.stop()
  engine = await start(cores)
  alone = { one: single, all: (await answers(engine, 6)).sort((a, b) => a - b)[1]! }
})
after(() => engine?.stop())
afterEach(() => stopLoops())

const text = new Set<string>()
/** Milliseconds of each of `count` answers of 32 tokens, one after the other. All must say the same. */
async function answers(of: Engine, count: number): Promise<number[]> {
  const times: number[] = []
  for (let index = 0; index < count; index++) {
    const began = performance.now()
    const fields = { max_tokens: 32, logit_bias: { '0': -100, '2': -100 } }
    const { json } = await of.ask('POST', '/v1/chat/completions', chat('Tell a long story about a ferry.', fields))
    times.push(performance.now() - began)
    assert.equal(json.usage.completion_tokens, 32)
    text.add(json.choices[0].message.content)
  }
  assert.equal(text.size, 1, 'answers do not depend on the number of threads')
  return times
}

async function startLoops(count: number, code = '') {
  for (let index = 0; index < count; index++) {
    const loop = spawn(process.execPath, ['-e', `${code};console.log(); for (;;);`], {
      stdio: ['ignore', 'pipe', 'ignore'],
    })
    loops.push(loop)
    await once(loop.stdout!, 'data')
  }
}
const stopLoops = () => {
  for (const loop of loops.splice(0)) loop.kill('SIGKILL')
}
const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!

test('beside a program that keeps a core busy, answers take the time of the threads that are left', {
  skip,
}, async () => {
  await startLoops(1)
  const times = await answers(engine, 8)
  const least = cores > 2 ? alone.all : alone.one
  assert.ok(median(times) < 2 * least, `${times.map(Math.round)} ms; ${JSON.stringify(alone)} ms alone`)
  // The first ones notice it.
  assert.ok(Math.max(...times) < 6 * least, `${times.map(Math.round)} ms; ${JSON.stringify(alone)} ms alone`)
})

test('beside a busy program per core, answers take a few times as long', { skip }, async () => {
  await startLoops(cores)
  const times = await answers(engine, 8)
  assert.ok(median(times) < 5 * alone.one, `${times.map(Math.round)} ms; ${JSON.stringify(alone)} ms alone`)
  assert.ok(Math.max(...times) < 12 * alone.one, `${times.map(Math.round)} ms; ${JSON.stringify(alone)} ms alone`)
})

test('when they have ended, all threads are back by the second answer', { skip }, async () => {
  await startLoops(cores)
  await answers(engine, 4)
  assert.ok((await engine.metric('step_threads')) < cores)
  stopLoops()
  await answers(engine, 1)
  const times = await answers(engine, 6)
  assert.equal(await engine.metric('step_threads'), cores)
  assert.ok(median(times) < 1.5 * alone.all, `${times.map(Math.round)} ms; ${JSON.stringify(alone)} ms alone`)
})

test('beside programs at the lowest priority, answers take hardly longer than those of one thread alone', {
  skip,
}, async () => {
  await startLoops(cores, "require('os').setPriority(19)")
  const times = await answers(engine, 8)
  assert.ok(median(times) < 1.5 * alone.one, `${times.map(Math.round)} ms; ${JSON.stringify(alone)} ms alone`)
})

test('an engine that is moved to one core while it runs computes with one thread', { skip }, async () => {
  const moved = await start(cores)
  try {
    await answers(moved, 1)
    const all = allowedCores()
    spawnSync('taskset', ['-a', '-p', '-c', String(all[0]), String(moved.process.pid)])
    await answers(moved, 2)
    assert.equal(await moved.metric('step_threads'), 1)
    assert.match(readFileSync(`/proc/${moved.process.pid}/status`, 'utf8'), /^Cpus_allowed_list:\t\d+$/m)
    spawnSync('taskset', ['-a', '-p', '-c', all.join(), String(moved.process.pid)])
    await until('all threads to be back', async () => {
      await answers(moved, 1)
      return (await moved.metric('step_threads')) === cores
    })
  } finally {
    await moved.stop()
  }
})

/** A control group with a quota of one core, if this machine lets us make one. */
function oneCoreGroup(): { enter: string; remove(): void } | undefined {
  const [v1, v2] = ['/sys/fs/cgroup/cpu/tunery-busy', '/sys/fs/cgroup/tunery-busy'] as const
  for (const [folder, file, quota] of [
    [v1, 'cpu.cfs_quota_us', '100000'],
    [v2, 'cpu.max', '100000 100000'],
  ] as const)
    try {
      if (!existsSync(path.dirname(folder))) continue
      mkdirSync(folder, { recursive: true })
      if (existsSync(path.join(folder, file))) {
        writeFileSync(path.join(folder, file), quota)
        return { enter: path.join(folder, 'cgroup.procs'), remove: () => rmdirSync(folder) }
      }
      rmdirSync(folder)
    } catch {
      // Not root, or the controller is not enabled there.
    }
  return undefined
}

test('a process with a quota of one core counts one, however many the machine has', { skip }, async (t) => {
  const group = oneCoreGroup()
  if (!group) return t.skip('no control group can be made here')
  try {
    const script = `import { usableCores } from '${path.resolve('lib/usable-cores.ts')}'; console.log(usableCores())`
    const run = 'echo $$ > "$0" && exec "$@"'
    const args = ['-c', run, group.enter, process.execPath, '--input-type=module-typescript', '-e', script]
    const { stdout, stderr } = spawnSync('sh', args, { encoding: 'utf8' })
    assert.equal(stdout, '1\n', stderr)
  } finally {
    group.remove()
  }
})
