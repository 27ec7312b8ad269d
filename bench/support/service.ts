// Starts the service as a process for a benchmark, on a temporary data folder or on an existing one, which it keeps.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { endWithThisProcess } from './child.ts'

const root = path.resolve(import.meta.dirname, '../..')
const noLimits = path.join(import.meta.dirname, 'no-limits.json')

/** `quiet` throws its log away. `sharedKey`: a key of another server on the same database, which makes no first key. */
export async function startService(
  settings: Record<string, string> = {},
  existingDir?: string,
  quiet = false,
  sharedKey?: string,
) {
  const dataDir = existingDir ?? mkdtempSync(path.join(os.tmpdir(), 'tunery-bench-data-'))
  const child = spawn(process.execPath, [path.join(root, 'server/main.ts')], {
    cwd: root,
    // Without tier limits, so that these are not what is measured.
    env: {
      ...process.env,
      TUNERY_DATA_DIR: dataDir,
      TUNERY_PORT: '0',
      TUNERY_LOG_LEVEL: 'warn',
      TUNERY_PLANS_FILE: noLimits,
      // It would load libraries beside what is measured.
      TUNERY_PREPARED_TRAINER_SECONDS: '0',
      ...settings,
    },
    stdio: ['ignore', 'pipe', quiet ? 'ignore' : 'inherit'],
  })
  endWithThisProcess(child)
  for await (const line of createInterface({ input: child.stdout })) if (line.startsWith('Tunery serves')) break
  if (child.exitCode !== null || !existsSync(path.join(dataDir, 'server.json'))) {
    if (!existingDir) rmSync(dataDir, { recursive: true, force: true })
    throw new Error('the service could not be started; see its message above')
  }
  const { url } = JSON.parse(readFileSync(path.join(dataDir, 'server.json'), 'utf8')) as { url: string }
  const keyFile = path.join(dataDir, 'first-key.txt')
  if (!sharedKey && !existsSync(keyFile)) throw new Error('the service wrote no first key')
  const key = sharedKey ?? readFileSync(keyFile, 'utf8').trim()
  // biome-ignore lint/suspicious/noExplicitAny: a benchmark reads whatever shape it requests
  const api = async (method: string, route: string, body?: unknown): Promise<any> => {
    const form = body instanceof FormData
    const response = await fetch(url + route, {
      method,
      headers: {
        authorization: `Bearer ${key}`,
        ...(body !== undefined && !form && { 'content-type': 'application/json' }),
      },
      body: body === undefined ? null : form ? body : JSON.stringify(body),
    })
    const answer = (await response.json()) as { error?: { message: string } }
    if (!response.ok) throw new Error(`${method} ${route}: ${answer.error?.message}`)
    return answer
  }
  /** Waits until no dataset is being prepared. */
  const idle = async () => {
    while (
      (await api('GET', '/datasets/?limit=100')).items.some((each: { status: string }) => each.status === 'preparing')
    )
      await sleep(200)
  }
  return {
    url,
    key,
    dataDir,
    api,
    pid: child.pid!,
    idle,
    /** Creates a job on a few rows and returns its id. */
    async createJob(): Promise<string> {
      const row = {
        messages: [
          { role: 'user', content: 'Hello' },
          { role: 'assistant', content: 'Hello.' },
        ],
      }
      const form = new FormData()
      form.append('file', new Blob([`${JSON.stringify(row)}\n`.repeat(16)]), 'rows.jsonl')
      const dataset_id = (await api('POST', '/datasets/', form)).id
      await idle()
      const model_id = 'HuggingFaceTB/SmolLM2-135M-Instruct'
      return (await api('POST', '/fine-tuning/jobs', { model_id, dataset_id })).id
    },
    async stop() {
      if (child.exitCode === null && child.signalCode === null) {
        child.kill('SIGTERM')
        await once(child, 'exit')
      }
      if (!existingDir) rmSync(dataDir, { recursive: true, force: true })
    },
  }
}
