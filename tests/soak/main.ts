// `npm run test:soak`: hundreds of kills. `--servers 3`: of several servers on Postgres, Redis and a common folder, and
// of these. `--at-once 2`: so many may be down together. `--folder` resumes an interrupted run.
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { postgresFolder } from './installation.ts'
import { soak } from './soak.ts'

const { values } = parseArgs({
  options: {
    kills: { type: 'string', default: '300' },
    seed: { type: 'string', default: '1' },
    servers: { type: 'string', default: '1' },
    'at-once': { type: 'string', default: '1' },
    each: { type: 'string', default: '20' },
    folder: { type: 'string' },
  },
})
const folder = values.folder ? path.resolve(values.folder) : mkdtempSync(path.join(os.tmpdir(), 'tunery-soak-'))
mkdirSync(folder, { recursive: true })
console.log(`in ${folder}, seed ${values.seed}; to resume it later: --folder ${folder}`)
const began = Date.now()
const { faults, kills, counts } = await soak({
  folder,
  seed: Number(values.seed),
  kills: Number(values.kills),
  servers: Number(values.servers),
  atOnce: Number(values['at-once']),
  verifyEach: Number(values.each),
  report: (text) => console.log(`${Math.round((Date.now() - began) / 1000)} s: ${text}`),
})
for (const fault of faults) console.error(fault)
console.log(JSON.stringify({ kills, counts, seconds: Math.round((Date.now() - began) / 1000), faults: faults.length }))
if (faults.length === 0 && !values.folder)
  for (const target of [folder, postgresFolder(folder)]) rmSync(target, { recursive: true, force: true })
process.exit(faults.length > 0 ? 1 : 0)
