// The Helm chart of a bundle: deploy/helm/tunery-model with the values of its model.
import { cp, readFile, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { root } from '../../../lib/root.ts'

interface ChartOptions {
  /** Name by which clients call the model. */
  name: string
  /** Name of the image, without registry and tag. */
  tag: string
  /** Version of Tunery, and the image's first tag. */
  version: string
  gpu: 'none' | 'cuda'
  /** Size of all weights. */
  size_bytes: number
}

/** Beside the weights, which are mapped: KV caches, compute buffers, the process. */
const overhead_bytes = 1.5e9
const MiB = 2 ** 20

/** Writes the chart into `folder`. Its values are the template's, with the lines of this model replaced. */
export async function writeChart(folder: string, { name, tag, version, gpu, size_bytes }: ChartOptions): Promise<void> {
  await cp(path.join(root, 'deploy/helm/tunery-model'), folder, { recursive: true })
  const memory = (factor: number) => `${Math.ceil((size_bytes * factor + overhead_bytes) / MiB / 256) * 256}Mi`
  const values = path.join(folder, 'values.yaml')
  const text = await readFile(values, 'utf8')
  const filled = [
    ['  name: model\n', `  name: ${JSON.stringify(name)}\n`],
    ['  repository: model\n  tag: latest\n', `  repository: ${tag}\n  tag: ${JSON.stringify(version)}\n`],
    ['gpu:\n  count: 0\n', `gpu:\n  count: ${gpu === 'cuda' ? 1 : 0}\n`],
    ['    memory: 2Gi\n', `    memory: ${memory(1)}\n`],
    ['    memory: 4Gi\n', `    memory: ${memory(2)}\n`],
  ].reduce((values, [from, to]) => {
    if (!values.includes(from!)) throw new Error(`deploy/helm/tunery-model/values.yaml has no line ${from}`)
    return values.replace(from!, () => to!)
  }, text)
  await writeFile(values, filled)
}
