// Requests that Schemathesis makes from the API description, valid and not, for every route of the whole service. No
// answer may be a 500, of a status that is not described, or off its schema; no route may do without its key or show
// what was deleted.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { startService } from '../../bench/support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { furnish } from './furnish.ts'

const root = path.resolve(import.meta.dirname, '../..')
const schemathesis = path.join(root, '.local/peers/schemathesis/bin/schemathesis')
const hooks = path.join(import.meta.dirname, 'hooks.py')
const limit_ms = 60 * 60_000
/**
 * The phase that tries the edges of every field makes about as many cases, the same ones whatever the seed: in short
 * runs it is left out.
 */
const edgeCases = 4000

type Counts = Record<string, number>

/** Asks about `wanted` requests; returns how many were made and what went wrong. */
export async function fuzzRoutes(wanted: number, seed: number): Promise<{ made: number; failures: string[] }> {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-fuzz-'))
  const settings = {
    TUNERY_MODELS_DIR: tinyModelsDir(),
    // Nothing is to leave this machine, whatever address a request names.
    TUNERY_HUGGINGFACE_URL: 'http://127.0.0.1:1',
    // hooks.py gives each case an address of its own.
    TUNERY_TRUSTED_PROXIES: '127.0.0.1',
  }
  const service = await startService(settings)
  const failures: string[] = []
  const counts: Counts = {}
  const made = () => Object.values(counts).reduce((sum, count) => sum + count, 0)
  const deadline_ms = Date.now() + limit_ms
  try {
    const furnished = await furnish(service, settings)
    const operations = Object.values(
      ((await (await fetch(`${service.url}/openapi.json`)).json()) as { paths: Record<string, object> }).paths,
    )
    const routes = operations.reduce((sum, methods) => sum + Object.keys(methods).length, 0)
    // Routes that take nothing give few cases, so one round gives fewer than asked; further ones go on with other
    // seeds.
    for (let round = 0; made() < wanted && failures.length === 0; round++) {
      const each = Math.max(5, Math.ceil((wanted - made()) / routes))
      const config = path.join(folder, 'schemathesis.toml')
      const countsFile = path.join(folder, 'counts.json')
      writeFileSync(config, configOf(seed + round, each, round === 0 && wanted >= edgeCases, furnished.known))
      console.log(`seed ${seed + round}: ${routes} routes, up to ${each} cases each in the phase that draws them`)
      const env = {
        ...process.env,
        PYTHONDONTWRITEBYTECODE: '1',
        FUZZ_URL: service.url,
        FUZZ_KEY: service.key,
        FUZZ_OPERATOR_KEY: furnished.operatorKey,
        FUZZ_OWN: furnished.own.join(),
        FUZZ_KEPT: furnished.known.join(),
        FUZZ_COUNTS: countsFile,
      }
      const child = spawn(schemathesis, ['--config-file', config, 'run', `${service.url}/openapi.json`], {
        cwd: folder,
        env,
        stdio: 'inherit',
      })
      process.once('exit', () => child.kill('SIGKILL'))
      const timer = setTimeout(() => child.kill('SIGINT'), Math.max(1, deadline_ms - Date.now()))
      const [code] = await once(child, 'exit')
      clearTimeout(timer)
      if (existsSync(countsFile)) {
        const found = JSON.parse(readFileSync(countsFile, 'utf8')) as Counts
        for (const [name, count] of Object.entries(found)) counts[name] = (counts[name] ?? 0) + count
        rmSync(countsFile)
      }
      if (Date.now() >= deadline_ms)
        failures.push(`${made()} of ${wanted} cases were made in ${limit_ms / 60_000} minutes`)
      else if (code !== 0)
        failures.push(
          `Schemathesis found what is printed above; again: npm run test:fuzz -- --only routes --seed ${seed + round}`,
        )
    }
    const health = await fetch(new URL('/health/ready', service.url))
    if (health.status !== 200) failures.push(`/health/ready says ${health.status}`)
  } finally {
    await service.stop()
    rmSync(folder, { recursive: true, force: true })
  }
  for (const [name, count] of Object.entries(counts).sort()) console.log(`${name}: ${count}`)
  return { made: made(), failures }
}

const configOf = (seed: number, each: number, edges: boolean, known: string[]) => `
seed = ${seed}
# Python 3.11 fails now and then where several threads parse source, as Hypothesis does.
workers = 1
continue-on-failure = true
request-timeout = 60
warnings = false
hooks = ${JSON.stringify(hooks)}

[cache]
enabled = false

[generation]
mode = "all"
max-examples = ${each}
database = "none"
# Whether a key is asked for is checked by itself; drawn keys only hide what is behind.
with-security-parameters = false

# One of these is what a parameter needs to reach what lies behind a route.
[dictionaries.known]
values = ${JSON.stringify([tiny, ...known])}

[generation.dictionaries]
string = { dictionary = "known", probability = 0.3 }

[parameters]
"body.model" = { dictionary = "known", probability = 0.5 }
"body.model_id" = { dictionary = "known", probability = 0.5 }
"body.dataset_id" = { dictionary = "known", probability = 0.5 }

[phases.coverage]
enabled = ${edges}
unexpected-methods = []

[checks]
# 503 says that the service is busy or waits for its engine, and when to ask again.
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
# What is too large is told as that, before anything else about it is looked at.
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 413, 415, 429, 503]
# What is of the right shape may still name what there is not, or two fields that exclude each other.
positive_data_acceptance.enabled = false
# A path without such a method is told as what it is for clients, an operation that there is not: 404.
unsupported_method.enabled = false
`
