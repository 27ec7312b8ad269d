// Learning from graders: a step of answers of 256 tokens and the rewards of a short task, beside TRL's GRPOTrainer with
// the same base, prompts, groups, lengths, loss, rate and threads; live requests beside such a job; and the example.
// `npm run bench -- reinforcement [--only push,steps,curve,beside,example] [--modes half,bf16,default,fp32,continuous]
// [--steps N] [--without-peer]`
import { execFileSync, spawnSync } from 'node:child_process'
import { globSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { answeredRows, gradedRows, grader } from '../../examples/orders/orders.ts'
import type { Service } from '../beside/job-events.ts'
import { describeMachine } from '../support/machine.ts'
import { startService } from '../support/service.ts'
import { measureBeside } from './beside.ts'
import { base, figuresOf, mean, orderRows, start, stories, upload, wordGraders, words } from './jobs.ts'

const parts = ['push', 'steps', 'curve', 'beside', 'example']
const { values } = parseArgs({
  options: {
    only: { type: 'string', default: parts.join(',') },
    modes: { type: 'string', default: 'half,bf16' },
    steps: { type: 'string' },
    seconds: { type: 'string', default: '60' },
    'without-peer': { type: 'boolean', default: false },
  },
})
const chosen = values.only.split(',')
if (chosen.some((part) => !parts.includes(part))) {
  console.error(`Usage: npm run bench -- reinforcement [--only ${parts.join(',')}] [--modes …] [--steps N]`)
  process.exit(2)
}
const root = path.resolve(import.meta.dirname, '../..')
const model = path.join(root, '.local/models', base, 'hf')
const python = path.join(root, '.local/python/bin/python')
/** Times the peer's answers a second. */
const least = 5

interface Figures {
  samples_per_second: number
  step_seconds: number
  cpu_seconds: number
  rewards: number[]
}

/** What both sides are given. */
interface Task {
  name: string
  rows: object[]
  batch: number
  group: number
  max_tokens: number
  rate: number
  steps: number
  warm_up: number
  reward: 'exact' | 'words'
}

function peer(task: Task, mode: string, adapter?: string): Figures {
  const folder = mkdtempSync(path.join(root, '.local/tmp/peer-'))
  try {
    const file = path.join(folder, 'rows.jsonl')
    writeFileSync(file, task.rows.map((row) => JSON.stringify(row)).join('\n'))
    const interpreter = execFileSync(
      python,
      ['-c', 'from bench.training.run import peer_python; print(peer_python())'],
      { cwd: root, encoding: 'utf8' },
    )
    const options = {
      mode,
      steps: task.steps,
      batch: task.batch,
      group: task.group,
      rate: task.rate,
      reward: task.reward,
      words: words.join(','),
      out: folder,
      'max-tokens': task.max_tokens,
      'warm-up': task.warm_up,
      ...(adapter && { adapter }),
    }
    const args = Object.entries(options).flatMap(([name, value]) => [`--${name}`, String(value)])
    const script = path.join(root, 'bench/training/peer_trl_grpo.py')
    const done = spawnSync(interpreter.trim().split('\n').at(-1)!, [script, model, file, ...args], {
      cwd: root,
      encoding: 'utf8',
      maxBuffer: 1e9,
    })
    if (done.status !== 0) throw new Error(done.stderr.slice(-3000))
    return JSON.parse(done.stdout.trim().split('\n').at(-1)!)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

async function ours(service: Service, task: Task, from: string): Promise<Figures> {
  const graders = task.reward === 'exact' ? [grader] : wordGraders
  const job = await start(service, from, await upload(service, task.rows), {
    method_options: {
      objective: 'reinforcement',
      graders,
      group_size: task.group,
      max_tokens: task.max_tokens,
      refill_rounds: 0,
    },
    training_config: { batch_size: task.batch, epochs: 1, learning_rate: task.rate, warmup_ratio: 0 },
  })
  await job.model
  return figuresOf(job.steps, task.batch * task.group, task.warm_up)
}

const show = (who: string, task: Task, figures: Figures) =>
  console.log(
    JSON.stringify({ part: task.name, who, ...figures }, (_, value) =>
      typeof value === 'number' ? Number(value.toFixed(3)) : value,
    ),
  )

async function compare(service: Service, task: Task, from: string, adapter?: string): Promise<void> {
  const us = await ours(service, task, from)
  show('Tunery', task, us)
  if (values['without-peer']) return
  const modes = values.modes.split(',').flatMap((mode) => {
    try {
      const figures = peer(task, mode, adapter)
      show(`TRL ${mode}`, task, figures)
      return [figures]
    } catch (error) {
      console.log(`TRL ${mode} is left out: ${(error as Error).message.trim().split('\n').at(-1)}`)
      return []
    }
  })
  const best = modes.toSorted((a, b) => b.samples_per_second - a.samples_per_second)[0]
  if (!best) return
  const ratio = us.samples_per_second / best.samples_per_second
  const verdict = ratio >= least ? '' : ', MISSED'
  console.log(
    `${task.name}: ${ratio.toFixed(2)} times TRL's best mode in answers a second (goal ${least}${verdict}), ` +
      `${(best.cpu_seconds / us.cpu_seconds).toFixed(2)} times by processor time`,
  )
  const thirds = ({ rewards }: Figures) => {
    const size = Math.ceil(rewards.length / 3)
    return [0, 1, 2].map((part) => mean(rewards.slice(part * size, (part + 1) * size)).toFixed(3)).join(', ')
  }
  console.log(`${task.name}, mean reward of each third: Tunery ${thirds(us)}; TRL ${modes.map(thirds).join(' | ')}`)
}

/** 20 supervised answers; returns the model, and the folder of its adapter, from which the peer continues. */
async function supervised(service: Service): Promise<{ id: string; adapter: string }> {
  const { answered } = orderRows(20, 1)
  const config = { training_config: { epochs: 4 } }
  const id = await (await start(service, base, await upload(service, answeredRows(answered)), config)).model
  const [adapter] = globSync('models/*/adapter', { cwd: service.dataDir })
  return { id, adapter: path.join(service.dataDir, adapter!) }
}

console.log(JSON.stringify(describeMachine()))
mkdirSync(path.join(root, '.local/tmp'), { recursive: true })
const common = { group: 8, warm_up: 1 }
if (chosen.includes('push')) spawnSync(python, ['-m', 'bench.training.push'], { cwd: root, stdio: 'inherit' })
for (const part of chosen.filter((part) => part !== 'push' && part !== 'example')) {
  const service = await startService()
  try {
    if (part === 'beside') await measureBeside(service, Number(values.seconds))
    if (part === 'steps') {
      const steps = Number(values.steps ?? 4)
      const task = { name: part, batch: 4, max_tokens: 256, rate: 1e-4, reward: 'words', steps, ...common } as const
      await compare(service, { ...task, rows: stories(4 * steps) }, base)
    }
    if (part === 'curve') {
      const steps = Number(values.steps ?? 30)
      const task = { name: part, batch: 8, max_tokens: 32, rate: 3e-4, reward: 'exact', steps, ...common } as const
      const { id, adapter } = await supervised(service)
      await compare(service, { ...task, rows: gradedRows(orderRows(20, 8 * steps).graded) }, id, adapter)
    }
  } finally {
    await service.stop()
  }
}
if (chosen.includes('example')) {
  const script = path.join(root, 'examples/learn-from-grader.ts')
  process.exitCode = spawnSync(process.execPath, [script], { cwd: root, stdio: 'inherit' }).status ?? 1
}
