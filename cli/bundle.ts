import path from 'node:path'
import { type NamedFile, writeBundle } from './bundle/write.ts'
import { UsageError } from './usage.ts'

interface BundleArgs {
  out?: string | undefined
  gguf?: string | undefined
  adapter?: string[] | undefined
  gpu?: string | undefined
}

/** Writes a folder that serves an exported model by itself: `docker build`, or one command of Node's. */
export async function bundle(model: string, { out, gguf, adapter = [], gpu = 'none' }: BundleArgs): Promise<void> {
  if (!out) throw new UsageError('bundle needs -o FOLDER, which it makes.')
  if (gpu !== 'none' && gpu !== 'cuda') throw new UsageError(`--gpu is none or cuda, not '${gpu}'.`)
  const file = gguf ?? (/\.gguf$/i.test(model) ? model : undefined)
  if (!file) throw new UsageError(`Give the exported file of '${model}' with --gguf FILE.gguf.`)
  const name = file === model ? path.basename(model).replace(/\.gguf$/i, '') : model
  const folder = path.resolve(out)
  await writeBundle({ model: { name, file }, adapters: adapter.map(named), gpu, out: folder })
  console.log(`${folder} serves '${name}'. Start it there with Docker:\n`)
  console.log(`  docker build -t ${path.basename(folder)} . && docker run --init -p 127.0.0.1:8000:8000 ${path.basename(folder)}\n`)
  console.log(`or without:\n\n  npm ci --omit=dev --ignore-scripts && node start.mjs\n\nIts README.md has the rest.`)
}

function named(text: string): NamedFile {
  const at = text.indexOf('=')
  if (at < 1 || at === text.length - 1) throw new UsageError(`--adapter takes NAME=FILE.gguf, not '${text}'.`)
  return { name: text.slice(0, at), file: text.slice(at + 1) }
}
