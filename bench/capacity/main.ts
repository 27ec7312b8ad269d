// `npm run bench -- capacity [--seed N] [--date DAY]`: what 10,000 adapters, 1,000 jobs a day and 2,000 requests a
// second need, simulated on a virtual clock from measured costs and checked against closed forms. Writes
// docs/performance/capacity.json, of which `npm run docs` makes docs/capacity.md. The same seed makes the same file.
import { writeFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { root } from '../../lib/root.ts'
import { compactJson } from '../../scripts/docs/json.ts'
import { readCosts } from './costs.ts'
import { target } from './plan.ts'
import { topicOf } from './report.ts'

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '1' },
    date: { type: 'string', default: new Date().toISOString().slice(0, 10) },
    out: { type: 'string', default: path.join(root, 'docs/performance/capacity.json') },
  },
})
const seed = Number(values.seed)
if (!Number.isSafeInteger(seed)) {
  console.error('Usage: npm run bench -- capacity [--seed N] [--date YYYY-MM-DD] [--out FILE]')
  process.exit(2)
}
const began = process.cpuUsage()
const { costs, list } = readCosts()
const topic = topicOf({ ...target, seed }, costs, list, values.date, console.log)
writeFileSync(values.out, compactJson(topic, 1000))
const { user, system } = process.cpuUsage(began)
console.log(`Wrote ${path.relative(root, values.out)} after ${((user + system) / 1e6).toFixed(1)} s of CPU time.`)
