// Schemathesis makes valid and invalid requests from the OpenAPI description for every route of the whole service. No
// answer may be a 500, have an undocumented status or violate its schema; every route must require its key and hide
// deleted objects.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { startService } from '../../bench/support/service.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'
import { createResources } from './furnish.ts'

const root = path.resolve(import.meta.dirname, '../..')
const schemathesis = path.join(root, '.local/peers/schemathesis/bin/schemathesis')
const hooks = path.join(import.meta.dirname, 'hooks.py')
const limit_ms = 60 * 60_000
/** The coverage phase (edge values of every field) makes about this many cases with any seed; short runs skip it. */
const edgeCases = 4000

type Counts = Record<string, number>

/** Makes about `wanted` requests; returns their number and the failures. */
export async function fuzzRoutes(wanted: number, seed: number): Promise<{ made: number; failures: string[] }> {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-fuzz-'))
  const settings = {
    TUNERY_MODELS_DIR: tinyModelsDir(),
    // Keep all requests on this machine.
    TUNERY_HUGGINGFACE_URL: 'http://127.0.0.1:1',
    // hooks.py sets a different client address for each case.
    TUNERY_TRUSTED_PROXIES: '127.0.0.1',
  }
  const service = await startService(settings)
  const failures: string[] = []
  const counts: Counts = {}
  const made = () => Object.values(counts).reduce((sum, count) => sum + count, 0)
  const deadline_ms = Date.now() + limit_ms
  try {
    const resources = await createResources(service, settings)
    const operations = Object.values(
      ((await (await fetch(`${service.url}/openapi.json`)).json()) as { paths: Record<string, object> }).paths,
    )
    const routes = operations.reduce((sum, methods) => sum + Object.keys(methods).length, 0)
    // Routes without input give few cases, so one round makes fewer than wanted; repeat with other seeds.
    for (let round = 0; made() < wanted && failures.length === 0; round++) {
      const each = Math.max(5, Math.ceil((wanted - made()) / routes))
      const config = path.join(folder, 'schemathesis.toml')
      const countsFile = path.join(folder, 'counts.json')
      writeFileSync(config, configOf(seed + round, each, round === 0 && wanted >= edgeCases, resources.known))
      console.log(`seed ${seed + round}: ${routes} routes, up to ${each} cases each in the phase that draws them`)
      const env = {
        ...process.env,
        PYTHONDONTWRITEBYTECODE: '1',
        FUZZ_URL: service.url,
        FUZZ_KEY: service.key,
        FUZZ_OPERATOR_KEY: resources.operatorKey,
        FUZZ_OWN: resources.own.join(),
        FUZZ_KEPT: resources.known.join(),
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
          `Schemathesis reported failures above; repeat: npm run test:fuzz -- --only routes --seed ${seed + round}`,
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
# Python 3.11 sometimes fails when several threads parse source, as Hypothesis does.
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
# A separate check covers missing keys; random keys would only hide the rest.
with-security-parameters = false

# Existing ids, so that requests get past 404.
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
# 503: the service is busy or waits for its engine; it has Retry-After.
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
# 413: the size is checked before the content.
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 413, 415, 429, 503]
# A body that matches its schema may still name unknown ids or exclusive fields.
positive_data_acceptance.enabled = false
# An unknown method gets 404, not 405.
unsupported_method.enabled = false
`
