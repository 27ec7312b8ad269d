// Schemathesis makes valid and invalid requests from the OpenAPI description for every route of the whole service. No
// answer may be a 500, have an undocumented status or violate its schema; every route must require its key and hide
// deleted objects.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import type { Ids } from '../support/one-of-each.ts'
import { tiny } from '../support/tiny.ts'
import { type Session, startFurnished } from './furnish.ts'
import { type Operation, operationsOf } from './hostile-texts.ts'

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
  // hooks.py sets a different client address for each case.
  const { service, ...resources } = await startFurnished({ TUNERY_TRUSTED_PROXIES: '127.0.0.1' })
  const failures: string[] = []
  const counts: Counts = {}
  const made = () => Object.values(counts).reduce((sum, count) => sum + count, 0)
  const deadline_ms = Date.now() + limit_ms
  try {
    const operations = operationsOf(await (await fetch(`${service.url}/openapi.json`)).json())
    const routes = operations.length
    const spares = sparesOf(operations, resources.spares)
    const ofSessions = operations.filter(({ bySession }) => bySession).map(({ path }) => path)
    // Routes without input give few cases, so one round makes fewer than wanted; repeat with other seeds.
    for (let round = 0; made() < wanted && failures.length === 0; round++) {
      const each = Math.max(5, Math.ceil((wanted - made()) / routes))
      const config = path.join(folder, 'schemathesis.toml')
      const countsFile = path.join(folder, 'counts.json')
      const edges = round === 0 && wanted >= edgeCases
      writeFileSync(config, configOf(seed + round, each, edges, resources.known, ofSessions, Object.keys(spares)))
      console.log(`seed ${seed + round}: ${routes} routes, up to ${each} cases each in the phase that draws them`)
      const env = {
        ...process.env,
        PYTHONDONTWRITEBYTECODE: '1',
        FUZZ_URL: service.url,
        FUZZ_KEY: service.key,
        FUZZ_OPERATOR_KEY: resources.operatorKey,
        FUZZ_OWN: resources.own.join(),
        FUZZ_KEPT: Object.values(resources.known).join(),
        FUZZ_SESSIONS: JSON.stringify(sessionsOf(operations, resources.sessions)),
        FUZZ_SPARES: JSON.stringify(spares),
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
    if (wanted >= edgeCases) failures.push(...neverFound(operations, counts))
    const health = await fetch(new URL('/health/ready', service.url))
    if (health.status !== 200) failures.push(`/health/ready says ${health.status}`)
  } finally {
    await service.stop()
    rmSync(folder, { recursive: true, force: true })
  }
  for (const [name, count] of Object.entries(counts).sort()) console.log(`${name}: ${count}`)
  return { made: made(), failures }
}

const nameOf = ({ method, path }: Operation) => `${method} ${path}`
const idsIn = ({ path }: Operation) => Array.from(path.matchAll(/\{(\w+)\}/g), ([, name]) => name!)

/** The spare objects of each operation that ends one: each has its own, so that none takes those of another. */
function sparesOf(operations: Operation[], spares: Ids[]): Record<string, Ids> {
  const taken: Record<string, number> = {}
  const ending = operations.filter(({ method, path }) => method === 'DELETE' || /\/(cancel|complete)$/.test(path))
  const entries = ending.map((operation) => {
    const names = idsIn(operation)
    const index = Math.max(0, ...names.map((name) => taken[name] ?? 0))
    for (const name of names) taken[name] = index + 1
    return [nameOf(operation), Object.fromEntries(names.map((name) => [name, spares[index]?.[name] ?? 'none']))]
  })
  return Object.fromEntries(entries)
}

/** The session that each operation is for which a key does not do. */
const sessionsOf = (operations: Operation[], sessions: Record<string, Session>): Record<string, Session> =>
  Object.fromEntries(
    operations
      .filter(({ bySession }) => bySession)
      .map((operation) => [nameOf(operation), sessions[nameOf(operation)] ?? sessions.all!]),
  )

/** Operations on an object whose requests found none: their code behind the look-up has not run. */
const neverFound = (operations: Operation[], counts: Counts): string[] =>
  operations
    .filter((operation) => idsIn(operation).length > 0 && !withoutObject.test(nameOf(operation)))
    .filter((operation) => !Object.keys(counts).some((name) => isFound(name, nameOf(operation))))
    .map((operation) => `no request of ${nameOf(operation)} has found an object`)
const isFound = (counted: string, name: string) =>
  counted.startsWith(`${name} `) && !/^(401|403|404|429)\b/.test(counted.slice(name.length + 1))
/** For what an authenticator, a provider of identities, OpenAI or a download from the hub makes. */
const withoutObject = /\/(identities|passkeys|permissions)\/|^DELETE .*\/download$/

const availability = 'ensure_resource_availability'
const configOf = (seed: number, each: number, edges: boolean, known: Ids, ofSessions: string[], ofSpares: string[]) => `
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
values = ${JSON.stringify([tiny, ...Object.values(known)])}
${Object.entries(known)
  // The hub's models are bases.
  .map(([name, id]) => `[dictionaries.${name}]\nvalues = ${JSON.stringify(name === 'model_id' ? [id, tiny] : [id])}`)
  .join('\n')}

[generation.dictionaries]
string = { dictionary = "known", probability = 0.3 }

[parameters]
${Object.keys(known)
  .map((name) => `"path.${name}" = { dictionary = "${name}", probability = 0.7 }`)
  .join('\n')}
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

# The check takes away the cookie under the name that the description has; the service adds the installation to it.
[[operations]]
include-path = ${JSON.stringify(ofSessions)}
checks.ignored_auth.enabled = false

# The hook puts a spare in the place of an object that is kept: the answer is not about the object of the case.
${ofSpares
  .map((name) => `[[operations]]\ninclude-name = ${JSON.stringify(name)}\nchecks.${availability}.enabled = false`)
  .join('\n')}
`
