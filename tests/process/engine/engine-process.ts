// Starts real engines for tests, with a client for their unix sockets.

import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { type IncomingHttpHeaders, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { instructionSets, kernelsFile } from '../../../engine/llama/kernels.ts'

export const root = fileURLToPath(new URL('../../..', import.meta.url))
export const modelPath = join(root, '.local/models/HuggingFaceTB/SmolLM2-135M-Instruct/model.gguf')
export const modelName = 'smol'

export interface Engine {
  process: ChildProcess
  socket: string
  stderr(): string
  exited: Promise<number | null>
  ask(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<Answer>
  /** POST with a streamed response. */
  stream(path: string, body: unknown, headers?: Record<string, string>): Stream
  metric(name: string): Promise<number>
  stop(): Promise<void>
}
export interface Answer {
  status: number
  headers: IncomingHttpHeaders
  text: string
  // biome-ignore lint/suspicious/noExplicitAny: tests read many shapes of JSON
  json: any
}
export interface Stream {
  chunks: AsyncIterable<Buffer>
  headers: Promise<{ status: number; headers: IncomingHttpHeaders }>
  disconnect(): void
}

const features = new Set(/^flags\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1]?.split(' '))
const needs = { avx512: 'avx512_vnni', avx2: 'avx2' }
/** The instructions of our own kernels that engines compute with here, if they do: no answer depends on its batch. */
export const ownKernels = instructionSets.find(
  (set) => features.has(needs[set]) && existsSync(join(root, '.local/llama/lib', kernelsFile(set))),
)

/**
 * Uses one thread: the library's threads spin at barriers, so next to another busy process two are many times slower
 * than one.
 */
export async function startEngine(args: string[] = ['--model', `${modelName}=${modelPath}`]): Promise<Engine> {
  const folder = mkdtempSync(join(tmpdir(), 'tunery-engine-'))
  const socket = join(folder, 'engine.sock')
  const child = spawn(
    process.execPath,
    [join(root, 'engine/main.ts'), '--listen', `unix:${socket}`, '--parent-pipe', '--threads', '1', ...args],
    { stdio: ['pipe', 'pipe', 'pipe'] },
  )
  let stderr = ''
  child.stderr!.on('data', (data) => {
    stderr += data
  })
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve))
  void exited.then(() => rmSync(folder, { recursive: true, force: true }))
  const line = await new Promise<string>((resolve, reject) => {
    child.stdout!.once('data', (data) => resolve(String(data)))
    child.once('exit', (code) => reject(new Error(`The engine ended with ${code}: ${stderr}`)))
  })
  if (JSON.parse(line).event !== 'listening' || !existsSync(socket)) throw new Error(`Not listening: ${line}`)

  const ask: Engine['ask'] = (method, path, body, headers = {}) =>
    new Promise((resolve, reject) => {
      const sent =
        body === undefined ? undefined : typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body)
      const call = request(
        {
          socketPath: socket,
          method,
          path,
          headers: { ...(sent && { 'content-type': 'application/json' }), ...headers },
        },
        async (response) => {
          const parts: Buffer[] = []
          try {
            for await (const part of response) parts.push(part as Buffer)
          } catch (error) {
            return reject(error)
          }
          const text = Buffer.concat(parts).toString()
          const isJson = String(response.headers['content-type']).startsWith('application/json')
          resolve({
            status: response.statusCode!,
            headers: response.headers,
            text,
            json: isJson ? JSON.parse(text) : undefined,
          })
        },
      )
      call.once('error', reject)
      call.end(sent)
    })

  const stream: Engine['stream'] = (path, body, sentHeaders = {}) => {
    const call = request({
      socketPath: socket,
      method: 'POST',
      path,
      headers: { 'content-type': 'application/json', ...sentHeaders },
    })
    const response = new Promise<import('node:http').IncomingMessage>((resolve, reject) =>
      call.once('response', resolve).once('error', reject),
    )
    response.catch(() => {})
    call.end(JSON.stringify(body))
    async function* chunks() {
      for await (const chunk of await response) yield chunk as Buffer
    }
    const headers = response.then(({ statusCode, headers: got }) => ({ status: statusCode!, headers: got }))
    headers.catch(() => {})
    return { chunks: chunks(), headers, disconnect: () => call.destroy() }
  }

  const metric = async (name: string): Promise<number> => {
    const { text } = await ask('GET', '/metrics')
    return Number(new RegExp(`^tunery_engine_${name} (.+)$`, 'm').exec(text)?.[1])
  }

  return {
    process: child,
    socket,
    stderr: () => stderr,
    exited,
    ask,
    stream,
    metric,
    async stop() {
      child.kill('SIGKILL')
      await exited
    },
  }
}

export function chat(content: string, fields: object = {}): object {
  return { model: modelName, messages: [{ role: 'user', content }], temperature: 0, ...fields }
}

export interface Events {
  // biome-ignore lint/suspicious/noExplicitAny: tests read many shapes of JSON
  data: any[]
  done: boolean
  raw: string
}

/** Reads a whole SSE stream. Throws on anything but `data:` lines and comments. */
export async function readEvents(stream: Stream): Promise<Events> {
  let raw = ''
  const decoder = new TextDecoder('utf-8', { fatal: true })
  for await (const chunk of stream.chunks) raw += decoder.decode(chunk, { stream: true })
  const frames = raw.split('\n\n')
  if (frames.pop() !== '') throw new Error(`The stream does not end with a blank line: ${raw.slice(-100)}`)
  const data = frames
    .filter((frame) => !frame.startsWith(':'))
    .map((frame) => {
      if (!frame.startsWith('data: ') || frame.includes('\n')) throw new Error(`Not one data line: ${frame}`)
      return frame.slice('data: '.length)
    })
  const done = data.at(-1) === '[DONE]'
  return { data: (done ? data.slice(0, -1) : data).map((text) => JSON.parse(text)), done, raw }
}

export function textOf(events: Events): string {
  return events.data.map((chunk) => chunk.choices[0]?.delta?.content ?? chunk.choices[0]?.text ?? '').join('')
}

/** Waits until `condition` holds. Throws after `limit_ms`. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  what: string,
  limit_ms = 20_000,
): Promise<void> {
  for (const end = performance.now() + limit_ms; performance.now() < end; ) {
    if (await condition()) return
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error(`Timed out waiting for: ${what}`)
}
