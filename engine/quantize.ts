// A program of its own: `node engine/quantize.ts SOURCE.gguf OUT.gguf TYPE THREADS [IMPORTANCE.safetensors]`. It tells
// of itself in JSON lines, as the trainer does, and ends when the pipe on its standard input does. OUT is whole only
// where a `result` line came and the status is 0.
import { setPriority } from 'node:os'
import { fileURLToPath } from 'node:url'
import { fileTypes } from './llama/file-types.ts'
import { readImportance } from './llama/importance.ts'
import { openLibrary } from './llama/library.ts'
import { NotQuantized, quantize } from './llama/quantize.ts'

const tell = (type: 'progress' | 'result' | 'error', message: string, data: object = {}) =>
  process.stdout.write(`${JSON.stringify({ type, message, data })}\n`)
/** At most twice a second. */
const tellEvery_ms = 500

async function main([source, out, type, threads, importance]: string[]): Promise<void> {
  // Nobody waits for a status any more, and an orderly end would wait for ever: for the library's threads, which wait
  // to be heard.
  const exit = () => process.kill(process.pid, 'SIGKILL')
  process.stdin.on('end', exit).on('close', exit).on('error', exit).resume()
  if (!source || !out || !type || !Object.hasOwn(fileTypes, type))
    throw new Error('quantize.ts SOURCE.gguf OUT.gguf TYPE THREADS [IMPORTANCE.safetensors]')
  // Answers go first.
  setPriority(10)
  const library = openLibrary(fileURLToPath(new URL('../.local/llama/lib', import.meta.url)))
  let told_at = 0
  const onProgress = (done: number) => {
    if (Date.now() - told_at < tellEvery_ms) return
    told_at = Date.now()
    tell('progress', `Quantizing to ${type}.`, { stage: 'quantize', done })
  }
  const weighed = importance ? readImportance(importance) : undefined
  await quantize(library, {
    source,
    out,
    type: type as keyof typeof fileTypes,
    threads: Math.max(1, Number(threads)),
    importance: weighed,
    onProgress,
  })
  tell('result', `Quantized to ${type}.`, { out })
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error: Error) => {
    if (error instanceof NotQuantized)
      tell('error', `The engine's library cannot make this file: ${error.message}`, { code: 'not_quantizable' })
    else console.error(error)
    process.exit(1)
  },
)
