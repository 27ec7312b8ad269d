// The service under test, as the runner passes it in the environment.
import { readdirSync, readFileSync } from 'node:fs'
import OpenAI from 'openai'

function env(name: string): string {
  const value = process.env[name]
  if (!value) throw new Error(`${name} is not set: these tests are run by npm run test:clients`)
  return value
}

export const url = env('OPENAI_BASE_URL')
export const key = env('OPENAI_API_KEY')
export const model = env('CLIENTS_MODEL')
export const embeddingModel = env('CLIENTS_EMBEDDING_MODEL')
/** Listed, but its upstream is down. */
export const absentModel = env('CLIENTS_ABSENT_MODEL')
const servicePid = Number(env('CLIENTS_SERVICE_PID'))

/** The official client, configured by the environment, without retries that would hide an error. */
export const client = new OpenAI({ maxRetries: 0 })

const text = (file: string) => {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

/** The process id of the service's current engine. */
export function enginePid(): number {
  const server = readdirSync('/proc').find((pid) => {
    const [, parent] = /^PPid:\s+(\d+)$/m.exec(text(`/proc/${pid}/status`)) ?? []
    return Number(parent) === servicePid && text(`/proc/${pid}/cmdline`).includes('engine/main.ts')
  })
  if (!server) throw new Error('the service has no engine')
  return Number(server)
}

/** CPU time of a process, in ticks of 10 ms. */
function ticks(pid: number): number {
  const fields = text(`/proc/${pid}/stat`).split(') ')[1]!.split(' ')
  return Number(fields[11]) + Number(fields[12])
}

/** Waits until the engine is idle; returns how long that took, in milliseconds. Throws after `limit_ms`. */
export async function engineRests(limit_ms: number): Promise<number> {
  const pid = enginePid()
  const started = performance.now()
  for (let before = ticks(pid); ; ) {
    const looked = performance.now()
    await new Promise((resolve) => setTimeout(resolve, 100))
    const after = ticks(pid)
    // A generating engine uses at least one full core: ten ticks.
    if (after - before <= 1) return looked - started
    if (performance.now() - started > limit_ms) throw new Error(`the engine was still busy after ${limit_ms} ms`)
    before = after
  }
}
