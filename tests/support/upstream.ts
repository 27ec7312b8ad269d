// Upstreams for tests: a real engine on a TCP port, and a fake OpenAI-compatible server.
import { type ChildProcess, spawn } from 'node:child_process'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'
import { root } from '../../lib/root.ts'

export interface TcpEngine {
  port: number
  process: ChildProcess
  metric(name: string): Promise<number>
  kill(): Promise<void>
}

/** Starts a real engine on a local port; 0 picks a free one. */
export async function startTcpEngine(model: string, gguf: string, port = 0): Promise<TcpEngine> {
  const args = ['--listen', `127.0.0.1:${port}`, '--parent-pipe', '--threads', '1', '--model', `${model}=${gguf}`]
  const child = spawn(process.execPath, [path.join(root, 'engine/main.ts'), ...args], {
    stdio: ['pipe', 'pipe', 'pipe'],
  })
  let stderr = ''
  child.stderr.on('data', (data) => {
    stderr += data
  })
  const exited = new Promise((resolve) => child.once('exit', resolve))
  const line = await new Promise<string>((resolve, reject) => {
    child.stdout.once('data', (data) => resolve(String(data)))
    child.once('exit', (code) => reject(new Error(`The engine ended with ${code}: ${stderr}`)))
  })
  const boundPort = Number(JSON.parse(line).address.split(':').at(-1))
  return {
    port: boundPort,
    process: child,
    async metric(name) {
      const text = await (await fetch(`http://127.0.0.1:${boundPort}/metrics`)).text()
      return Number(new RegExp(`^tunery_engine_${name} (.+)$`, 'm').exec(text)?.[1] ?? 0)
    },
    async kill() {
      child.kill('SIGKILL')
      await exited
    },
  }
}

export type Handler = (
  path: string,
  // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
  body: any,
  response: http.ServerResponse,
  request: http.IncomingMessage,
  /** The body as it was sent. */
  text: string,
) => void | Promise<void>

/** Starts a fake upstream: answers health probes itself and passes other requests to `handle`. */
export async function startFakeUpstream(handle: Handler) {
  const server = http.createServer(async (request, response) => {
    let text = ''
    for await (const piece of request) text += piece
    if (request.method === 'GET')
      return void response.writeHead(200, { 'content-type': 'application/json' }).end('{"object":"list","data":[]}')
    await handle(request.url!, JSON.parse(text), response, request, text)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    stop: () => {
      server.closeAllConnections()
      server.close()
    },
  }
}
export type FakeUpstream = Awaited<ReturnType<typeof startFakeUpstream>>

export const json = (response: http.ServerResponse, status: number, body: unknown) =>
  void response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
