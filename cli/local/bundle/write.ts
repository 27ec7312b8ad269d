// Writes a bundle: a folder with the engine's source, package.json, lockfile, weights, a Dockerfile and a start script.
import { createHash } from 'node:crypto'
import { constants, createReadStream, existsSync, globSync } from 'node:fs'
import { chmod, copyFile, cp, mkdir, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { engineSources } from '../../../lib/engine-folders.ts'
import { root } from '../../../lib/root.ts'
import { UsageError } from '../../support/errors.ts'
import { writeChart } from './chart.ts'
import { enginePackages } from './packages.ts'

/** Where set-up leaves it (`--with vision`). */
const visionSource = path.join(root, '.local/llama/mtmd/source')

export interface NamedFile {
  name: string
  file: string
}
interface BundleOptions {
  model: NamedFile
  /** The projector of a model that reads pictures. */
  projector?: string | undefined
  adapters: NamedFile[]
  gpu: 'none' | 'cuda'
  /** Whether to write a Helm chart beside the bundle, in `chart`. */
  chart: boolean
  out: string
}

/** Throws a UsageError if an option cannot be used. `model.file` is undefined if it is downloaded later. */
export async function checkBundle({
  model,
  projector,
  adapters,
  out,
}: Omit<BundleOptions, 'model'> & { model: Partial<NamedFile> & { name: string } }): Promise<void> {
  const names = [model, ...adapters].map(({ name }) => name)
  for (const name of names)
    if (!/^[\w.:/@+ -]{1,200}$/.test(name))
      throw new UsageError(`'${name}' cannot be a model's name here: letters, digits, blanks and _ . : / @ + - can.`)
  if (new Set(names).size < names.length) throw new UsageError('The model and its adapters need names of their own.')
  for (const file of [model.file, projector, ...adapters.map(({ file }) => file)])
    if (file !== undefined) await requireGguf(file)
  if (projector !== undefined) requireVisionSource(model.name)
  await assertEmpty(out)
}

/** Throws a UsageError unless set-up has left the source of the library for pictures, which bundles carry. */
export function requireVisionSource(name: string): void {
  if (!existsSync(path.join(visionSource, 'LICENSE')))
    throw new UsageError(
      `'${name}' reads pictures, and a bundle needs the source of the library for them, which is not installed here. ` +
        "Run 'npm run setup -- --with vision', which needs g++, and then this command again.",
    )
}

/** Writes the bundle atomically. Throws as `checkBundle` does. */
export async function writeBundle(options: BundleOptions): Promise<void> {
  await checkBundle(options)
  const { model, projector, adapters, gpu, chart, out } = options
  const part = `${out}.${process.pid}.part`
  try {
    await mkdir(path.join(part, 'model'), { recursive: true })
    await copyEngine(part, gpu)
    const files = []
    for (const [index, { name, file }] of [model, ...adapters].entries())
      files.push({
        name,
        ...(await copyWeights(file, part, index === 0 ? 'model/model.gguf' : `model/adapter-${index}.gguf`)),
      })
    const seen = projector === undefined ? undefined : await copyWeights(projector, part, 'model/mmproj.gguf')
    if (seen) await copyVision(path.join(part, 'vision'))
    const { version } = JSON.parse(await readFile(path.join(root, 'package.json'), 'utf8'))
    await writeJson(part, 'bundle.json', {
      made_with: `tunery ${version}`,
      gpu,
      model: files[0],
      ...(seen && { projector: seen }),
      adapters: files.slice(1),
    })
    await copyTexts(part, model.name, { gpu, chart, vision: seen !== undefined })
    const size_bytes = files.reduce((sum, file) => sum + file.size_bytes, seen?.size_bytes ?? 0)
    if (chart)
      await writeChart(path.join(part, 'chart'), {
        name: model.name,
        tag: imageName(model.name),
        version,
        gpu,
        size_bytes,
      })
    await makeReadable(part)
    await rename(part, out)
  } finally {
    await rm(part, { recursive: true, force: true })
  }
}

async function requireGguf(file: string): Promise<void> {
  const problem = (why: string) =>
    new UsageError(`${file} ${why}. './tunery export MODEL --format gguf -o FILE' makes a file for a bundle.`)
  const refuse = (error: NodeJS.ErrnoException) => {
    throw problem(error.code === 'ENOENT' ? 'does not exist' : `cannot be read: ${error.message}`)
  }
  // stat before open: opening a named pipe would wait for a writer.
  if (!(await stat(file).catch(refuse)).isFile()) throw problem('is not a GGUF file')
  const handle = await open(file).catch(refuse)
  try {
    const head = Buffer.alloc(4)
    if ((await handle.read(head, 0, 4, 0)).bytesRead < 4 || head.toString('latin1') !== 'GGUF')
      throw problem('is not a GGUF file')
  } finally {
    await handle.close()
  }
}

async function assertEmpty(out: string): Promise<void> {
  const entries = await readdir(out).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return []
    throw new UsageError(`${out} cannot be written: ${error.message}.`)
  })
  if (entries.length > 0) throw new UsageError(`${out} is not empty. Name a folder that does not exist yet.`)
}

async function copyEngine(part: string, gpu: BundleOptions['gpu']): Promise<void> {
  for (const file of globSync(engineSources, { cwd: root })) await cp(path.join(root, file), path.join(part, file))
  // For x64, compiled on this machine. The engine computes without them where they do not fit.
  const kernels = globSync('libtunery-kernels-*.so', { cwd: path.join(root, '.local/llama/lib') })
  if (kernels.length > 0) await mkdir(path.join(part, 'engine/kernels'), { recursive: true })
  for (const file of kernels)
    await copyFile(path.join(root, '.local/llama/lib', file), path.join(part, 'engine/kernels', file))
  for (const file of ['LICENSE', '.npmrc']) await copyFile(path.join(root, file), path.join(part, file))
  const { manifest, lockfile } = enginePackages(gpu)
  await writeJson(part, 'package.json', manifest)
  await writeJson(part, 'package-lock.json', lockfile)
}

/** The source of the library for pictures, and what compiles it for the bundle's own libraries. */
async function copyVision(folder: string): Promise<void> {
  await cp(visionSource, path.join(folder, 'source'), { recursive: true })
  await copyFile(path.join(root, 'scripts/setup/compile-vision.mjs'), path.join(folder, 'compile-vision.mjs'))
  await copyFile(path.join(root, 'deploy/bundle/build-vision.mjs'), path.join(folder, 'build.mjs'))
}

/** Copies weights, sharing blocks where the filesystem can (reflink). Returns path, size and hash. */
async function copyWeights(from: string, part: string, file: string) {
  const to = path.join(part, file)
  await copyFile(from, to, constants.COPYFILE_FICLONE)
  const hash = createHash('sha256')
  for await (const piece of createReadStream(to, { highWaterMark: 1 << 20 })) hash.update(piece)
  const handle = await open(to, 'r+')
  await handle.sync()
  await handle.close()
  return { file, size_bytes: (await stat(to)).size, sha256: hash.digest('hex') }
}

const gpuNote = `
The image for a machine with an NVIDIA GPU, its driver and NVIDIA's container toolkit, and its start:

\`\`\`sh
docker build --build-arg TUNERY_GPU=cuda -t MODEL_TAG .
docker run --init --read-only --gpus all -p 127.0.0.1:8000:8000 MODEL_TAG
\`\`\`

Without Docker the machine needs the runtime of CUDA 13 (\`libcudart.so.13\`, \`libcublas.so.13\`). Without it, or
without a GPU, the model runs on the CPU.
`

const visionNote = `
The model reads pictures: send them as data URLs in \`image_url\` parts. The image's build compiles the library for
them, from the source in \`vision\`. Without Docker \`node vision/build.mjs\` does, after each \`npm ci\`; it needs
\`g++\`.
`

const chartNote = `
In Kubernetes, with the image in a registry that the cluster reads:

\`\`\`sh
kubectl create secret generic MODEL_TAG-keys --from-literal=api-keys="$(openssl rand -hex 24)"
helm install MODEL_TAG chart --set image.repository=registry.example.com/MODEL_TAG --set image.tag=1 \\
  --set apiKey.existingSecret=MODEL_TAG-keys
\`\`\`

\`chart/values.yaml\` has what this model needs filled in; \`chart/README.md\` lists every value.
`

interface Texts extends Pick<BundleOptions, 'gpu' | 'chart'> {
  /** Whether the model reads pictures. */
  vision: boolean
}

async function copyTexts(part: string, name: string, { gpu, chart, vision }: Texts): Promise<void> {
  const deploy = (file: string) => path.join(root, 'deploy', file)
  const dockerfile = await readFile(deploy('Dockerfile.model'), 'utf8')
  await writeFile(path.join(part, 'Dockerfile'), vision ? dockerfile : withoutVision(dockerfile))
  await copyFile(deploy('bundle/dockerignore'), path.join(part, '.dockerignore'))
  for (const file of ['start.mjs', 'settings.env']) await copyFile(deploy(`bundle/${file}`), path.join(part, file))
  const readme = (await readFile(deploy('bundle/README.md'), 'utf8'))
    .replace('GPU_NOTE\n', gpu === 'cuda' ? gpuNote : '')
    .replace('CHART_NOTE\n', chart ? chartNote : '')
    .replace('VISION_NOTE\n', vision ? visionNote : '')
    .replace('VISION_STEP\n', vision ? 'node vision/build.mjs\n' : '')
    .replace(' VISION_OPTION', vision ? ' --projector model/mmproj.gguf' : '')
  await writeFile(
    path.join(part, 'README.md'),
    readme.replaceAll('MODEL_NAME', name).replaceAll('MODEL_TAG', imageName(name)),
  )
}

/** The Dockerfile without the stage that compiles the library for pictures. */
function withoutVision(dockerfile: string): string {
  const from = dockerfile.indexOf('# The library for pictures,')
  const to = dockerfile.indexOf('\n\n', from) + 2
  if (from === -1 || to === 1) throw new Error('deploy/Dockerfile.model has no stage for pictures')
  return (dockerfile.slice(0, from) + dockerfile.slice(to)).replace('--from=vision ', '--from=packages ')
}

/** The name of a model as that of an image. */
const imageName = (name: string) =>
  name
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-|-$/g, '') || 'model'

/** Makes all files readable: a Docker image keeps their modes, and its server runs as another user. */
async function makeReadable(folder: string): Promise<void> {
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true }))
    await chmod(path.join(entry.parentPath, entry.name), entry.isDirectory() ? 0o755 : 0o644)
}

const writeJson = (folder: string, file: string, value: unknown) =>
  writeFile(path.join(folder, file), `${JSON.stringify(value, null, 2)}\n`)
