// What the runner tells the tests about the service that they ask.
import { readdirSync, readFileSync } from 'node:fs'
import OpenAI from 'openai'

function told(name: string): string {
  const value = process.env[name]
  if (!value) throw new Error(`${name} is not set: these tests are run by npm run test:clients`)
  return value
}

export const url = told('OPENAI_BASE_URL')
export const key = told('OPENAI_API_KEY')
export const model = told('CLIENTS_MODEL')
export const embeddingModel = told('CLIENTS_EMBEDDING_MODEL')
/** Listed, but its server is away. */
export const absentModel = told('CLIENTS_ABSENT_MODEL')
const servicePid = Number(told('CLIENTS_SERVICE_PID'))

/** The official client, as a user makes it from the environment, without retries that would hide an error. */
export const client = new OpenAI({ maxRetries: 0 })

const text = (file: string) => {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

/** The engine that the service runs now. */
export function enginePid(): number {
  const found = readdirSync('/proc').find((pid) => {
    const [, parent] = /^PPid:\s+(\d+)$/m.exec(text(`/proc/${pid}/status`)) ?? []
    return Number(parent) === servicePid && text(`/proc/${pid}/cmdline`).includes('engine/main.ts')
  })
  if (!found) throw new Error('the service has no engine')
  return Number(found)
}

/** Processor time that a process has used, in the kernel's ticks of 10 ms. */
function ticks(pid: number): number {
  const fields = text(`/proc/${pid}/stat`).split(') ')[1]!.split(' ')
  return Number(fields[11]) + Number(fields[12])
}

/**
 * Waits until the engine computes nothing any more; returns how long that took, in milliseconds. Throws after
 * `limit_ms`.
 */
export async function engineRests(limit_ms: number): Promise<number> {
  const pid = enginePid()
  const started = performance.now()
  for (let before = ticks(pid); ; ) {
    const looked = performance.now()
    await new Promise((resolve) => setTimeout(resolve, 100))
    const after = ticks(pid)
    // An engine that generates uses all of at least one core: ten ticks.
    if (after - before <= 1) return looked - started
    if (performance.now() - started > limit_ms) throw new Error(`the engine was still at work after ${limit_ms} ms`)
    before = after
  }
}
