// An S3 server of the test's own: moto's (`node scripts/setup.mjs --with s3`).
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3'
import { freePort } from '../../bench/support/free-port.ts'
import { root } from '../../lib/root.ts'
import { until } from './client.ts'

const program = path.join(root, '.local/peers/s3/bin/moto_server')

/** Options of a test on S3: skipped, with what to do, where the server is not installed. */
export const s3Test = { skip: existsSync(program) ? false : 'no S3 server: node scripts/setup.mjs --with s3' }

export const s3Credentials = { AWS_ACCESS_KEY_ID: 'test', AWS_SECRET_ACCESS_KEY: 'test', AWS_REGION: 'us-east-1' }

export async function startS3() {
  Object.assign(process.env, s3Credentials)
  const port = await freePort()
  const endpoint = `http://127.0.0.1:${port}`
  const start = async () => {
    const child = spawn(program, ['-H', '127.0.0.1', '-p', String(port)], { stdio: 'ignore' })
    await until('the S3 server to answer', () =>
      fetch(endpoint).then(
        () => true,
        () => false,
      ),
    )
    return child
  }
  let server = await start()
  const client = new S3Client({ endpoint, region: 'us-east-1', forcePathStyle: true })
  const createBucket = () => client.send(new CreateBucketCommand({ Bucket: 'tunery' }))
  await createBucket()
  const kill = async () => {
    const ended = once(server, 'exit')
    server.kill('SIGKILL')
    await ended
  }
  return {
    endpoint,
    client,
    url: (prefix: string) => `s3://tunery/${prefix}?endpoint=${endpoint}&region=us-east-1`,
    /** It keeps objects in memory: after a kill the bucket is empty. */
    kill,
    async restart() {
      server = await start()
      await createBucket()
    },
    /** Stops and continues the process, which does not answer meanwhile. */
    pause: () => server.kill('SIGSTOP'),
    resume: () => server.kill('SIGCONT'),
    async stop() {
      client.destroy()
      await kill()
    },
  }
}
