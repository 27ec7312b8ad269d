// `npm run bench -- growth [--only rows,…] [--large] [--seconds N] [--threads N] [--out FOLDER]`: time and memory at
// growing sizes, a plot and a table for each sweep, and the exponents. Ends with 1 where one grows faster than
// docs/growth.md promises. Nothing else should run on the machine; with one thread, other programs change the exponents
// least.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { compactJson } from '../../scripts/docs/json.ts'
import { describeMachine } from '../support/machine.ts'
import { plotsOf } from './plot.ts'
import { type Result, runSweep, type Sweep, tableOf } from './sweep.ts'
import { adapters } from './sweeps/adapters.ts'
import { context } from './sweeps/context.ts'
import { length } from './sweeps/length.ts'
import { preparation } from './sweeps/preparation.ts'
import { rows } from './sweeps/rows.ts'
import { streams } from './sweeps/streams.ts'

const sweeps: Sweep[] = [rows, preparation, length, adapters, context, streams]
const names = sweeps.map(({ name }) => name)
const { values } = parseArgs({
  options: {
    only: { type: 'string' },
    large: { type: 'boolean', default: false },
    seconds: { type: 'string', default: '120' },
    threads: { type: 'string', default: String(os.availableParallelism()) },
    out: { type: 'string', default: path.resolve(import.meta.dirname, '../../docs/images/growth') },
  },
})
const chosen = values.only?.split(',') ?? names
const seconds_max = Number(values.seconds)
const threads = Number(values.threads)
if (chosen.some((name) => !names.includes(name)) || !(seconds_max > 0) || !(threads >= 1)) {
  console.error(
    `Usage: npm run bench -- growth [--only ${names.join(',')}] [--large] [--seconds N] [--threads N] [--out FOLDER]`,
  )
  process.exit(2)
}
// process.exit runs the exit handlers that kill what a sweep has started.
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => process.exit(1))

mkdirSync(values.out, { recursive: true })
const file = path.join(values.out, 'growth.json')
/** Sweeps that are not run keep their last result. */
const results: Record<string, Result & { machine: object; at: string }> = existsSync(file)
  ? JSON.parse(readFileSync(file, 'utf8'))
  : {}
const command = `npm run bench -- growth ${process.argv.slice(2).join(' ')}`.trim()
for (const sweep of sweeps.filter(({ name }) => chosen.includes(name))) {
  const result = await runSweep(sweep, { large: values.large, threads, seconds_max }, console.log)
  results[sweep.name] = { ...result, machine: { ...describeMachine(), command }, at: new Date().toISOString() }
  writeFileSync(file, compactJson(results, 300))
  for (const theme of ['light', 'dark'] as const)
    writeFileSync(path.join(values.out, `${sweep.name}-${theme}.svg`), plotsOf(result, theme))
  console.log(`\n${tableOf(result)}\n`)
}
const missed = chosen.flatMap((name) =>
  results[name]!.plots.flatMap(({ curves }) => curves.filter(({ holds }) => holds === false)),
)
for (const { name, exponent, bound } of missed)
  console.error(`${name}: exponent ${exponent?.toFixed(2)}, promised ${JSON.stringify(bound)}`)
process.exit(missed.length > 0 ? 1 : 0)
