// `npm run test:fuzz [-- --only bodies|routes|times] [--cases N] [--seed N]`: random bodies for the inference routes
// (main.ts, which has more options), then random requests for all routes (routes.ts), then long hostile texts in every
// string field of every route, for time (times.ts; `--route NAME` for some). `--cases` applies to each of the first
// two.
import { spawnSync } from 'node:child_process'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { fuzzRoutes } from './routes.ts'
import { fuzzTimes } from './times.ts'

for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => process.exit(1))
const text = { type: 'string' } as const
const { values } = parseArgs({
  options: { only: text, cases: text, seed: text, case: text, 'at-once': text, route: text },
})
const { only = values.case || values['at-once'] ? 'bodies' : undefined, route, ...forBodies } = values
let failed = 0

if (!only || only === 'bodies') {
  const options = Object.entries(forBodies).flatMap(([name, value]) => [`--${name}`, value])
  failed =
    spawnSync(process.execPath, [path.join(import.meta.dirname, 'main.ts'), ...options], { stdio: 'inherit' }).status ??
    1
}
if (!only || only === 'routes') {
  const seed = Number(values.seed ?? Date.now() % 1_000_000)
  const { made, failures } = await fuzzRoutes(Number(values.cases ?? 20_000), seed)
  for (const failure of failures) console.error(`✖ ${failure}`)
  console.log(`seed ${seed}\n${made} requests for all routes, ${failures.length} failed`)
  failed ||= failures.length
}
if (!only || only === 'times') {
  const { made, failures } = await fuzzTimes(route)
  for (const failure of failures) console.error(`✖ ${failure}`)
  console.log(`${made} requests with long hostile texts, ${failures.length} failed`)
  failed ||= failures.length
}
process.exit(failed > 0 ? 1 : 0)
