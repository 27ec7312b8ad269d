// The process of the sandbox. Its main thread passes messages on and never computes, so that it can interrupt Python,
// and ends when the service does.
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { Worker } from 'node:worker_threads'
import type { PythonReply, PythonRequest } from './messages.ts'
import { seal } from './seal.ts'

const sigint = 2
const stack_mb = 16
/** What interrupts Python, and the number of the call that runs, or ran last. */
const interrupts = new Int32Array(new SharedArrayBuffer(8))

// Opened before the seal: libuv then needs nothing new of the kernel.
const { stdout } = process
const send = (reply: PythonReply) => stdout.write(`${JSON.stringify(reply)}\n`)
const die = () => process.kill(process.pid, 'SIGKILL')

/** Undefined: Python starts without, in longer time. */
function readSnapshot(file: string | undefined): Buffer | undefined {
  try {
    return file === undefined ? undefined : readFileSync(file)
  } catch {
    return undefined
  }
}

const worker = new Worker(new URL('./worker.ts', import.meta.url), {
  workerData: { interrupts, snapshot: readSnapshot(process.argv[2]) },
  env: {},
  resourceLimits: { stackSizeMb: stack_mb },
})
worker.on('error', (error) => {
  process.stderr.write(`${error.stack}\n`)
  setTimeout(die, 50)
})
worker.on('message', (reply: PythonReply) => {
  if ('ready' in reply) {
    try {
      seal()
    } catch (error) {
      send({ fatal: (error as Error).message })
      setTimeout(die, 50)
      return
    }
  }
  send(reply)
})
createInterface({ input: process.stdin })
  .on('line', (line) => {
    const request = JSON.parse(line) as PythonRequest
    if (!('interrupt' in request)) worker.postMessage(request)
    else if (Atomics.load(interrupts, 1) === request.interrupt) Atomics.store(interrupts, 0, sigint)
  })
  .on('close', die)
