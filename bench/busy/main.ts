// Answers and training on a machine that another program keeps busy: alone, beside one loop, beside a loop per core,
// and after. Beside llama-server on the same weights with as many threads, and TRL.
// `npm run bench -- busy [--only steps,1,8,training,priorities] [--rounds N]`: `steps` is what choosing the threads of
// each step costs alone; 1 and 8 are clients; `priorities` are those of trainings.
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { durations, measure, median, tokensPerSecond } from '../serving/job.ts'
import { text, user } from '../serving/prompts.ts'
import { comparisonRow, type Row, rowText, singleRow } from '../serving/rounds.ts'
import {
  noEndToken,
  peerWeights,
  root,
  type Side,
  sampling,
  startLlamaServer,
  startOurs,
  threads,
} from '../serving/servers.ts'
import type { Measurement } from '../steps/measure.ts'
import { endWithThisProcess } from '../support/child.ts'
import { describeMachine } from '../support/machine.ts'
import { measurePriority } from './priorities.ts'

const parts = ['steps', '1', '8', 'training', 'priorities']
const { values } = parseArgs({
  options: { only: { type: 'string', default: parts.join(',') }, rounds: { type: 'string', default: '2' } },
})
const chosen = values.only.split(',')
const rounds = Number(values.rounds)
if (chosen.some((part) => !parts.includes(part)) || !(rounds >= 1)) {
  console.error(`Usage: npm run bench -- busy [--only ${parts.join(',')}] [--rounds N]`)
  process.exit(2)
}

const output = 32
const priorities = ['idle', 'low', 'normal']
/** Times that a step may take alone with chosen threads, of that with all. */
const chosenMax = 1.02
/** The share of one thread's speed alone. */
const oneThreadMin = 0.8
/** How many times its duration alone an answer may take, and the answer after the load's end from which on it holds. */
const recovered = { duration_max: 1.2, answer: 2 }
const loads = [
  { name: 'alone', loops: 0 },
  { name: 'beside one loop', loops: 1 },
  { name: 'beside a loop per core', loops: threads },
]
let holds = true
const report = (row: Row) => {
  console.log(rowText(row))
  if (row.holds === false) holds = false
}

for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => process.exit(1))
console.log(JSON.stringify(describeMachine()))
for (const part of chosen)
  if (part === 'steps') stepsAlone()
  else if (part === 'training') await training()
  else if (part === 'priorities') for (const priority of priorities) await measurePriority(priority, loads, besideLoops)
  else await answers(Number(part))
process.exit(holds ? 0 : 1)

/** The same step with chosen threads and with fixed ones, in turn, each in a process of its own. */
function stepsAlone(): void {
  const step_names = ['sequences 1', 'sequences 8', 'prompt 256']
  const steps_ms = (chosen: boolean): Record<string, number> => {
    const weights = peerWeights().at(-1)!
    const what: Measurement = { model: weights, adapter: null, kernels: 'served', threads, chosen, steps: step_names }
    const args = [path.join(root, 'bench/steps/measure.ts'), JSON.stringify(what)]
    return JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] }))
  }
  const runs = { ours: [] as Record<string, number>[], theirs: [] as Record<string, number>[] }
  for (let round = 0; round < 2 * rounds; round++)
    for (const side of ['ours', 'theirs', 'theirs', 'ours'] as const) runs[side].push(steps_ms(side === 'ours'))
  for (const name of step_names) {
    const times = { ours: runs.ours.map((run) => run[name]!), theirs: runs.theirs.map((run) => run[name]!) }
    report(comparisonRow('busy', `${name}, alone, over fixed threads`, 'ms', times, { most: chosenMax }))
  }
}

async function answers(clients: number): Promise<void> {
  const us = await startOurs()
  const one = await startOurs({ TUNERY_THREADS: '1' })
  const who = `${clients} client${clients > 1 ? 's' : ''}`
  const bodies = (turn: number, requests: number) =>
    Array.from({ length: requests }, (_, index) => ({
      ...user(text(32, 1 + turn * 1000 + index)),
      ...sampling,
      ...noEndToken,
      max_tokens: output,
    }))
  // Makes the eight-bit copy, where there is none yet: llama-server gets it too.
  await measure(us, clients, bodies(999, clients))
  const them = await startLlamaServer(clients, 1024, { weights: peerWeights().at(-1)! })
  const sides = { us, one, them }
  const speeds = async (turn: number, loops: number) => {
    const speed = async (side: Side) => {
      // Beside loops an answer of llama-server takes up to half a minute.
      const requests = side === them && loops > 0 ? clients : Math.max(4, 2 * clients)
      return tokensPerSecond(await measure(side, clients, bodies(turn, requests)), output)
    }
    const found = { us: [] as number[], one: [] as number[], them: [] as number[] }
    for (let round = 0; round < rounds; round++)
      for (const name of ['us', 'one', 'them', 'them', 'one', 'us'] as const) found[name].push(await speed(sides[name]))
    return found
  }
  try {
    for (const side of [us, one, them]) await measure(side, clients, bodies(998, 2 * clients))
    let alone: Awaited<ReturnType<typeof speeds>> | undefined
    for (const [turn, { name, loops }] of loads.entries()) {
      const found = await besideLoops(loops, () => speeds(turn, loops))
      alone ??= found
      const compared = { ours: found.us, theirs: found.them }
      report(comparisonRow('busy', `${who}, ${name}`, 'tokens/s', compared, loops > 0 ? { least: 1 } : {}, them.form))
      const what = loops === 0 ? `${who}, alone, over one thread` : `${who}, ${name}, over one thread alone`
      const bound = loops === 1 ? { least: oneThreadMin } : {}
      report(comparisonRow('busy', what, 'tokens/s', { ours: found.us, theirs: alone.one }, bound))
    }
    // Answer by answer, from the moment at which the loops end.
    const usual = median(durations(await measure(us, clients, bodies(10, 6 * clients))))
    for (const { name, loops } of loads.slice(1)) {
      await besideLoops(loops, () => measure(us, clients, bodies(11, 2 * clients)))
      const after = await measure(us, clients, bodies(12, 6 * clients))
      const times = after.requests.toSorted((a, b) => a.sent_ms - b.sent_ms)
      const late = times
        .slice((recovered.answer - 1) * clients)
        .map(({ sent_ms, ended_ms }) => (ended_ms - sent_ms) / usual)
      const first = times
        .map(({ sent_ms, ended_ms }) => ((ended_ms - sent_ms) / usual).toFixed(2))
        .slice(0, 3 * clients)
      const note = `the first after: ${first.join(', ')}`
      const what = `${who}, after "${name}", from the second answer on`
      report(singleRow('busy', what, 'x alone', late, { most: recovered.duration_max }, note))
    }
  } finally {
    await Promise.all([us.stop(), one.stop(), them.stop()])
  }
}

/** Both trainers at the normal priority: at the lowest one a loop per core leaves nothing. */
async function training(): Promise<void> {
  const python = path.join(root, '.local/python/bin/python')
  const options = ['--only', 'full-rows', '--modes', 'half', '--turns', '1']
  for (const { name, loops } of loads) {
    const line = await besideLoops(loops, async () => {
      const child = spawn(python, ['-m', 'bench.training.run', ...options], {
        cwd: root,
        stdio: ['ignore', 'pipe', 'inherit'],
      })
      endWithThisProcess(child)
      const [out] = await Promise.all([new Response(child.stdout as never).text(), once(child, 'exit')])
      return out
    })
    const [, trl, ours] = /TRL half ([\d.]+) .*Tunery ([\d.]+)/.exec(line) ?? []
    if (ours === undefined || trl === undefined) throw new Error(`The trainers printed no speeds:\n${line}`)
    const found = { ours: [Number(ours)], theirs: [Number(trl)] }
    report(comparisonRow('busy', `training, ${name}`, 'tokens/s', found, { least: 1 }, 'peer: TRL half'))
  }
}

async function besideLoops<T>(count: number, work: () => Promise<T>): Promise<T> {
  const loops: ChildProcess[] = []
  try {
    for (let index = 0; index < count; index++) {
      const loop = spawn(process.execPath, ['-e', 'console.log(); for (;;);'], { stdio: ['ignore', 'pipe', 'inherit'] })
      endWithThisProcess(loop)
      loops.push(loop)
      await once(loop.stdout!, 'data')
    }
    return await work()
  } finally {
    for (const loop of loops) loop.kill('SIGKILL')
  }
}
