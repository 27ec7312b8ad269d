// `npm run bench -- autoscaler [--seed N]`: replicas and waiting under our rule, Ray Serve's, and KEDA's with HPA's, on
// a virtual clock. The machine does not matter.
import { parseArgs } from 'node:util'
import { compare } from './compare.ts'
import { recordedTraces, syntheticTraces } from './traces.ts'

const { values } = parseArgs({ options: { seed: { type: 'string', default: '1' } } })
const rows = compare([...syntheticTraces(Number(values.seed)), ...recordedTraces()])

const columns: [head: string, value: (row: (typeof rows)[number]) => string][] = [
  ['trace', ({ trace }) => trace],
  ['rule', ({ rule }) => rule],
  ['replica-seconds', ({ replica_seconds }) => Math.round(replica_seconds).toLocaleString('en')],
  ['mean wait', ({ mean_wait_s }) => `${mean_wait_s.toFixed(2)} s`],
  ['99th percentile', ({ p99_wait_s }) => `${p99_wait_s.toFixed(1)} s`],
  ['longest miss', ({ longest_miss_s }) => `${longest_miss_s.toFixed(0)} s`],
  ['changes', ({ changes }) => String(changes.length)],
]
const line = (cells: string[]) => `| ${cells.join(' | ')} |`
console.log(line(columns.map(([head]) => head)))
console.log(line(columns.map((_, index) => (index < 2 ? '---' : '--:'))))
for (const row of rows) console.log(line(columns.map(([, value]) => value(row))))
