import { rmSync } from 'node:fs'
import { mkdir, realpath, rm } from 'node:fs/promises'
import { constants } from 'node:os'
import path from 'node:path'
import { checkBundle, type NamedFile, writeBundle } from './bundle/write.ts'
import { bringExport } from './export.ts'
import { UsageError } from './usage.ts'

interface BundleArgs {
  output?: string | undefined
  gguf?: string | undefined
  name?: string | undefined
  quantization?: string | undefined
  adapter?: string[] | undefined
  gpu?: string | undefined
}

/** Writes a folder that serves a model by itself: `docker build`, or one command of Node's. */
export async function bundle(model: string, args: BundleArgs): Promise<void> {
  const { output, adapter = [], gpu = 'none' } = args
  if (!output) throw new UsageError('bundle needs -o FOLDER, which it makes.')
  if (gpu !== 'none' && gpu !== 'cuda') throw new UsageError(`--gpu is none or cuda, not '${gpu}'.`)
  const isFile = /\.gguf$/i.test(model)
  const name = args.name ?? (isFile ? path.basename(model).replace(/\.gguf$/i, '') : model)
  // A link to a folder stands for that folder, which the bundle is to take the place of.
  const folder = await realpath(output).catch(() => path.resolve(output))
  clearWhenStopped(folder)
  const options = { adapters: adapter.map(named), gpu, out: folder } as const
  const given = args.gguf ?? (isFile ? model : undefined)
  if (given) {
    if (args.quantization) throw new UsageError('--quantization is for a model that is exported; a file has its own.')
    await writeBundle({ model: { name, file: given }, ...options })
  } else {
    await checkBundle({ model: { name, file: undefined }, ...options })
    const beside = `${folder}.${process.pid}.export`
    const brought = path.join(beside, 'model.gguf')
    await mkdir(beside, { recursive: true })
    try {
      const { made } = await bringExport(model, {
        format: 'gguf',
        quantization: args.quantization,
        output: brought,
        'adapter-only': false,
      })
      if (made.format !== 'gguf' || !made.merge)
        throw new UsageError(
          `${made.id} is no model in one GGUF file. './tunery bundle ${made.model} -o FOLDER' makes one.`,
        )
      await writeBundle({ model: { name, file: brought }, ...options })
    } finally {
      await rm(beside, { recursive: true, force: true })
    }
  }
  console.log(`${folder} serves '${name}'. Start it there with Docker:\n`)
  console.log(`  docker build -t model . && docker run --init --read-only -p 127.0.0.1:8000:8000 model\n`)
  console.log(`or without:\n\n  npm ci --omit=dev --ignore-scripts && node start.mjs\n\nIts README.md has the rest.`)
}

/**
 * What is written beside the folder may be as large as the model: who stops the command in the middle is not to find it
 * there later.
 */
function clearWhenStopped(folder: string): void {
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    process.once(signal, () => {
      for (const kind of ['part', 'export'])
        rmSync(`${folder}.${process.pid}.${kind}`, { recursive: true, force: true })
      process.exit(128 + constants.signals[signal])
    })
}

function named(text: string): NamedFile {
  const at = text.indexOf('=')
  if (at < 1 || at === text.length - 1) throw new UsageError(`--adapter takes NAME=FILE.gguf, not '${text}'.`)
  return { name: text.slice(0, at), file: text.slice(at + 1) }
}
