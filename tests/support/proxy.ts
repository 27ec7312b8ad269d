// A load balancer before several servers: nginx with the configuration of a guide, or where it is not installed a plain
// HTTP proxy of Node's.
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { until } from './client.ts'

const nginx = spawnSync('nginx', ['-v']).status === 0

/** What a test with the other proxy has not shown; undefined where nginx is installed. */
export const noNginx = nginx ? undefined : "nginx is not installed: Node's proxy stands for it, its lines were not run"

/** `configuration`: of nginx's `http`, which listens on `port`. `servers`: the same as there, HOST:PORT. */
export async function startProxy(configuration: string, port: number, servers: string[], folder: string) {
  if (!nginx) return await startNodeProxy(port, servers)
  mkdirSync(folder, { recursive: true })
  const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${folder}/${name};`,
  )
  const file = path.join(folder, 'nginx.conf')
  writeFileSync(
    file,
    `daemon off; master_process off; pid ${folder}/pid; error_log ${folder}/error.log;\nevents {}\n` +
      `http { access_log off; ${paths.join(' ')}\n${configuration}}\n`,
  )
  const child = spawn('nginx', ['-p', folder, '-c', file], { stdio: ['ignore', 'ignore', 'inherit'] })
  await until('nginx to listen', () => {
    if (child.exitCode !== null) throw new Error(`nginx ended with status ${child.exitCode}`)
    return fetch(`http://127.0.0.1:${port}/health/live`).then(
      () => true,
      () => false,
    )
  })
  return async () => {
    const ended = once(child, 'exit')
    if (child.exitCode === null && child.kill('SIGKILL')) await ended
  }
}

/** Servers in turn; one that refuses the connection is left out for that request. */
async function startNodeProxy(port: number, servers: string[]) {
  let turn = 0
  const proxy = http.createServer((request, response) => {
    const tryNext = (left: number) => {
      const [host, to] = servers[turn++ % servers.length]!.split(':')
      const { method, url: path, headers } = request
      const forwarded = http.request({ host, port: to, method, path, headers, agent: false }, (answer) => {
        response.writeHead(answer.statusCode!, answer.headers)
        answer.pipe(response)
        answer.on('error', () => response.destroy())
      })
      forwarded.on('error', (error: NodeJS.ErrnoException) => {
        if (error.code === 'ECONNREFUSED' && left > 1) tryNext(left - 1)
        else if (response.headersSent) response.destroy()
        else response.writeHead(502).end()
      })
      forwarded.once('socket', (socket) => socket.once('connect', () => request.pipe(forwarded)))
    }
    tryNext(servers.length)
  })
  proxy.listen(port, '127.0.0.1')
  await once(proxy, 'listening')
  return async () => {
    proxy.close()
    proxy.closeAllConnections()
  }
}
