// Compares serving with a bare llama-server: `npm run bench -- serving [--only NAME[,NAME]] [--rounds N] [--out FILE]`.
// `--load free`, `pinned` or `both`: where the process that makes the load of `throughput` runs. Prints a row per
// figure and writes all of them, with every measurement, as JSON. Nothing else should run on the machine.
import { mkdirSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { describeMachine, type Limits, limitsText, measureLimits } from '../support/machine.ts'
import type { Placement } from './job.ts'
import { type Row, rowText, sharesText } from './rounds.ts'
import { adapters } from './scenarios/adapters.ts'
import { addedBase, longPrompts as promptsOf, shapes } from './scenarios/added-base.ts'
import { agent } from './scenarios/agent.ts'
import { gateway } from './scenarios/gateway.ts'
import { longPrompts } from './scenarios/long-prompts.ts'
import { manyAdapters } from './scenarios/many-adapters.ts'
import { pictures } from './scenarios/pictures.ts'
import { prefix } from './scenarios/prefix.ts'
import { speculation } from './scenarios/speculation.ts'
import { coldStart, deploy } from './scenarios/starts.ts'
import { stepTimes } from './scenarios/step-times.ts'
import { firstToken, throughput } from './scenarios/throughput.ts'
import { llamaFlags, root } from './servers.ts'

type Scenario = (rounds: number, say: (row: Row) => void, placements: readonly Placement[]) => Promise<void>
const scenarios: Record<string, Scenario> = {
  throughput,
  'first-token': firstToken,
  speculation,
  prefix,
  adapters,
  many: manyAdapters,
  gateway,
  deploy,
  start: coldStart,
  pictures,
  agent,
  ...Object.fromEntries(shapes.map((shape) => [shape, addedBase(shape)])),
  ...Object.fromEntries(shapes.map((shape) => [`prompt-${shape}`, promptsOf(shape)])),
  'long-prompts': longPrompts,
  'step-times': stepTimes,
}

const { values } = parseArgs({
  options: {
    only: { type: 'string' },
    rounds: { type: 'string', default: '5' },
    load: { type: 'string', default: 'free' },
    out: { type: 'string' },
  },
})
const placements = ({ free: ['free'], pinned: ['pinned'], both: ['free', 'pinned'] } as Record<string, Placement[]>)[
  values.load
]
const rounds = Number(values.rounds)
const names = values.only?.split(',') ?? Object.keys(scenarios)
const unknown = names.filter((name) => !scenarios[name])
if (unknown.length > 0 || !(rounds >= 1) || !placements) {
  console.error(
    `Usage: npm run bench -- serving [--only ${Object.keys(scenarios).join(',')}] [--rounds N] [--load ` +
      'free|pinned|both] [--out FILE]',
  )
  process.exit(2)
}

/** The machine and versions, to interpret or repeat the figures. */
const machine = () => ({
  ...describeMachine(),
  limits,
  command: `npm run bench -- serving ${process.argv.slice(2).join(' ')}`.trim(),
  llama_server: `llama-server ${llamaFlags(8, 1024, 0).slice(2).join(' ')}, -np as many as clients`,
})

for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => process.exit(1))
const rows: Row[] = []
/** Measured when the first row asks. */
let limits: Limits | undefined
const failures: { scenario: string; message: string }[] = []
const out = path.resolve(values.out ?? path.join(root, '.local/bench/serving.json'))
const save = () =>
  writeFileSync(
    out,
    `${JSON.stringify({ at: new Date().toISOString(), rounds, machine: machine(), rows, failures }, null, 1)}\n`,
  )
mkdirSync(path.dirname(out), { recursive: true })
for (const name of names) {
  try {
    const say = (row: Row) => {
      rows.push(row)
      console.log(rowText(row))
      if (row.demand) {
        if (!limits) {
          limits = measureLimits()
          console.log(limitsText(limits))
        }
        console.log(`${row.scenario.padEnd(12)} ${sharesText(row, limits)}`)
      }
      save()
    }
    await scenarios[name]!(rounds, say, placements)
  } catch (error) {
    failures.push({ scenario: name, message: (error as Error).message })
    console.error(`${name}: ${(error as Error).message}`)
  }
}
save()
console.log(`\nAll measurements: ${path.relative(process.cwd(), out)}`)
process.exit(failures.length > 0 || rows.some(({ holds }) => holds === false) ? 1 : 0)
