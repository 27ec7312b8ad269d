// Servers that an upstream can be: a real engine on a port, and a stand-in for those of other makes.
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

/** A real engine that listens on a port of this machine; 0 takes a free one. */
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
  const taken = Number(JSON.parse(line).address.split(':').at(-1))
  return {
    port: taken,
    process: child,
    async metric(name) {
      const text = await (await fetch(`http://127.0.0.1:${taken}/metrics`)).text()
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
) => void | Promise<void>

/** A server of another make, as far as a test needs it; it answers probes. */
export async function startForeign(handle: Handler) {
  const server = http.createServer(async (request, response) => {
    let text = ''
    for await (const piece of request) text += piece
    if (request.method === 'GET')
      return void response.writeHead(200, { 'content-type': 'application/json' }).end('{"object":"list","data":[]}')
    await handle(request.url!, JSON.parse(text), response, request)
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
export type Foreign = Awaited<ReturnType<typeof startForeign>>

export const json = (response: http.ServerResponse, status: number, body: unknown) =>
  void response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
