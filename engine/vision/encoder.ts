// Handle of the thread that encodes pictures: all projectors share it, as encodings at once would only compete.
import { Worker } from 'node:worker_threads'
import type { EncoderAnswer, EncoderRequest, EncoderResult } from './encoder-messages.ts'

export interface Encoder {
  /** Rejects with the library's reason. */
  call<Kind extends EncoderRequest['kind']>(
    request: EncoderRequest & { kind: Kind },
    transferred?: readonly ArrayBuffer[],
  ): Promise<EncoderResult[Kind]>
}

/** `dir`: the folder of the llama.cpp libraries. The thread starts at the first call. */
export function createEncoder(dir: string): Encoder {
  // The thread answers in the order of the calls.
  let pending: { resolve(result: never): void; reject(error: Error): void }[] = []
  let thread: Worker | null = null

  const start = (): Worker => {
    const worker = new Worker(new URL('./encoder-thread.ts', import.meta.url), { workerData: { dir } })
    worker.on('message', (answer: EncoderAnswer) => {
      const call = pending.shift()!
      if (pending.length === 0) worker.unref()
      if ('error' in answer) call.reject(new Error(answer.error))
      else call.resolve(answer.result as never)
    })
    worker.on('error', (error) => {
      const failed = pending
      pending = []
      for (const call of failed) call.reject(error as Error)
    })
    return worker
  }

  return {
    call(request, transferred = []) {
      thread ??= start()
      // An idle thread does not keep the process alive.
      thread.ref()
      thread.postMessage(request, [...transferred])
      return new Promise((resolve, reject) => pending.push({ resolve, reject }))
    },
  }
}
