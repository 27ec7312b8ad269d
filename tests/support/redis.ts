// A Redis server for one test, which can be stopped, killed and started again. It keeps nothing on disk.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import net from 'node:net'
import { freePort } from '../../bench/support/free-port.ts'
import { until } from './client.ts'

const installed = spawnSync('redis-server', ['--version']).status === 0

/** Options of a test that needs Redis: skipped, with what to do, where it is missing. */
export const redisTest = { skip: installed ? false : 'Redis is not installed: apt-get install redis-server' }

/** Starts a server. `options`: of its command line, such as `--requirepass`. */
export async function startRedis(...options: string[]) {
  const port = await freePort()
  let server: ChildProcess
  const start = async () => {
    const args = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', ...options]
    server = spawn('redis-server', args, { stdio: 'ignore' })
    await until(
      'Redis to listen',
      async () =>
        await command('PING').then(
          () => true,
          () => false,
        ),
    )
  }
  const kill = async () => {
    const ended = once(server, 'exit')
    server.kill('SIGKILL')
    await ended
  }
  /** Sends one command of words without spaces and resolves with the first bytes of the reply. */
  const command = (line: string) =>
    new Promise<string>((resolve, reject) => {
      const socket = net.connect(port, '127.0.0.1', () => socket.write(`${line}\r\n`))
      socket.setTimeout(2000, () => socket.destroy(new Error('Redis does not reply')))
      socket.once('error', reject)
      socket.once('data', (data) => {
        resolve(String(data))
        socket.destroy()
      })
    })
  await start()
  return {
    port,
    url: `redis://127.0.0.1:${port}`,
    command,
    start,
    kill,
    /** It keeps its connections and answers nothing. */
    freeze: () => server.kill('SIGSTOP'),
    thaw: () => server.kill('SIGCONT'),
    async stop() {
      if (server.exitCode === null && server.signalCode === null) await kill()
    },
  }
}
export type TestRedis = Awaited<ReturnType<typeof startRedis>>
