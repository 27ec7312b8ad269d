// Command line: `node engine/quantize.ts SOURCE.gguf OUT.gguf TYPE THREADS [IMPORTANCE.safetensors]`. Reports in JSON
// lines, as the trainer does, and exits when standard input closes. OUT is complete only after a `result` line and exit
// status 0.
import { setPriority } from 'node:os'
import { fileURLToPath } from 'node:url'
import { dieWithParent } from '../lib/child-process.ts'
import { fileTypes } from './llama/file-types.ts'
import { readImportanceMatrix } from './llama/importance.ts'
import { openLibrary } from './llama/library.ts'
import { QuantizationFailed, quantize } from './llama/quantize.ts'

const report = (type: 'progress' | 'result' | 'error', message: string, data: object = {}) =>
  process.stdout.write(`${JSON.stringify({ type, message, data })}\n`)
const report_interval_ms = 500

async function main([source, out, type, threads, importance]: string[]): Promise<void> {
  // With SIGKILL: an exit would deadlock, as the library's threads wait for this one to run their log callback.
  dieWithParent()
  if (!source || !out || !type || !Object.hasOwn(fileTypes, type))
    throw new Error('quantize.ts SOURCE.gguf OUT.gguf TYPE THREADS [IMPORTANCE.safetensors]')
  // Lower priority than the engine that serves.
  setPriority(10)
  const library = openLibrary(fileURLToPath(new URL('../.local/llama/lib', import.meta.url)))
  let reported_at = 0
  const onProgress = (done: number) => {
    if (Date.now() - reported_at < report_interval_ms) return
    reported_at = Date.now()
    report('progress', `Quantizing to ${type}.`, { stage: 'quantize', done })
  }
  const importanceMatrix = importance ? readImportanceMatrix(importance) : undefined
  await quantize(library, {
    source,
    out,
    type: type as keyof typeof fileTypes,
    threads: Math.max(1, Number(threads)),
    importance: importanceMatrix,
    onProgress,
  })
  report('result', `Quantized to ${type}.`, { out })
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error: Error) => {
    if (error instanceof QuantizationFailed)
      report('error', `The engine's library cannot make this file: ${error.message}`, { code: 'not_quantizable' })
    else console.error(error)
    process.exit(1)
  },
)
