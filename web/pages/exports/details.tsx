import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Download } from 'lucide-react'
import type { Export } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatBytes, formatExport, formatNumber, formatPercent } from '../../lib/format.ts'
import { useModelNames } from '../../lib/names.ts'
import { refresh_ms } from '../../lib/query.ts'
import { Button, buttonClass, CopyButton, ExternalLink } from '../../ui/button.tsx'
import { CodeTabs } from '../../ui/code.tsx'
import { Help } from '../../ui/disclosure.tsx'
import { Notice, Progress, Status } from '../../ui/feedback.tsx'
import { Facts } from '../../ui/layout.tsx'
import { ConfirmDialog, Dialog } from '../../ui/popups.tsx'
import { Message, RelativeTime } from '../../ui/values.tsx'

/** What an export does now, or is about to. */
export const stageOf = ({ stage }: Pick<Export, 'stage'>): string => (stage ? stages[stage] : 'Waiting in queue')

const stages: Record<NonNullable<Export['stage']>, string> = {
  reference: 'Computing reference answers',
  merge: 'Merging the adapter',
  convert: 'Converting',
  quantize: 'Quantizing',
  check: 'Checking the exported model',
  pack: 'Packaging',
  push: 'Pushing to the repository',
}

/** One export: how far it is, its check, and its files. */
export function ExportDetails({
  made,
  making,
  mayWrite,
  onClose,
}: {
  made: Export
  making: boolean
  mayWrite: boolean
  onClose: () => void
}) {
  const query = useQuery({
    queryKey: ['exports', made.id],
    queryFn: ({ signal }) => tunery.exports.get(made.id, { signal }),
    initialData: made,
    refetchInterval: making ? refresh_ms : false,
  })
  const { status, files, check, error, push, expires_at, model } = query.data
  const ready = status === 'ready'
  const nameOf = useModelNames()
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={nameOf(model)}
      description={formatExport(query.data)}
      width="lg"
      footer={<Footer shown={query.data} making={making} mayWrite={mayWrite} onClose={onClose} />}
    >
      <div className="grid gap-5">
        <div>
          <Status status={status} />
        </div>
        {error && (
          <Notice tone="bad" title="The export failed">
            <Message text={error.message} />
          </Notice>
        )}
        {making && <Stage shown={query.data} />}
        {check && <Check check={check} />}
        {files.length > 0 && <Files files={files} />}
        {push && (
          <Notice tone={push.error ? 'bad' : 'good'} title={`Repository ${push.repository}`}>
            {push.error ??
              (push.url ? <ExternalLink href={push.url}>{push.url}</ExternalLink> : 'Pushed when the export is ready.')}
          </Notice>
        )}
        {ready && <CodeTabs label="Program" samples={samplesOf(query.data)} />}
        {expires_at && (
          <p className="text-sm text-muted">
            Files are deleted <RelativeTime time={expires_at} />.
          </p>
        )}
      </div>
    </Dialog>
  )
}

function Footer({
  shown,
  making,
  mayWrite,
  onClose,
}: {
  shown: Export
  making: boolean
  mayWrite: boolean
  onClose: () => void
}) {
  const client = useQueryClient()
  return (
    <>
      {mayWrite && (
        <ConfirmDialog
          trigger={<Button>{making ? 'Cancel export' : 'Delete'}</Button>}
          title={making ? 'Cancel this export?' : 'Delete this export?'}
          action={making ? 'Cancel export' : 'Delete export'}
          keep={making ? 'Keep exporting' : undefined}
          onConfirm={async () => {
            await tunery.exports.delete(shown.id)
            onClose()
            await client.invalidateQueries({ queryKey: ['exports'] })
          }}
        >
          {making ? 'Nothing is exported.' : 'Its files are deleted.'} The model stays.
        </ConfirmDialog>
      )}
      {shown.status === 'ready' && (
        <a className={buttonClass('primary')} href={`/v1/exports/${shown.id}/download`} download>
          <Download aria-hidden /> Download {formatBytes(shown.size_bytes)}
        </a>
      )}
    </>
  )
}

/** How far it is. */
function Stage({ shown }: { shown: Export }) {
  const { status, progress } = shown
  return (
    <div className="grid gap-1.5">
      <Progress value={status === 'running' ? progress : null} label={stageOf(shown)} />
      <p className="flex justify-between gap-4 text-sm text-muted">
        <span>{stageOf(shown)}</span>
        {status === 'running' && <span>{formatPercent(progress)}</span>}
      </p>
    </div>
  )
}

function Check({ check }: { check: NonNullable<Export['check']> }) {
  return (
    <section aria-label="Check" className="grid gap-2">
      <h3 className="font-semibold">
        {check.agrees ? 'Matches the trained model' : 'Does not match the trained model'}{' '}
        <Help word="this check">
          The exported file answers held-out prompts in its own runtime, and its tokens and probabilities are compared
          with those of the trainer. A file that differs by more than its precision allows is not released.
        </Help>
      </h3>
      {check.problem && <Notice tone="bad">{check.problem}</Notice>}
      <Facts
        columns={2}
        facts={[
          ['Identical answers', formatPercent(check.identical, 1)],
          ['Matching tokens', formatPercent(check.matching_tokens, 1)],
          ['Difference', `${formatNumber(check.log_probability_difference)} nats per token`],
          ['Prompts', check.prompts],
          ['Runtime', check.runtime],
        ]}
      />
    </section>
  )
}

function Files({ files }: { files: Export['files'] }) {
  return (
    <section aria-label="Files" className="grid gap-2">
      <h3 className="font-semibold">Files</h3>
      <ul className="grid gap-2">
        {files.map(({ name, size_bytes, sha256 }) => (
          <li key={name} className="rounded-md p-3 ring-1 ring-line">
            <p className="flex justify-between gap-2">
              <span className="min-w-0 break-all">{name}</span>
              <span>{formatBytes(size_bytes)}</span>
            </p>
            <p className="mt-1 flex items-center gap-1 text-xs text-muted">
              <span className="min-w-0 truncate font-mono">sha256 {sha256}</span>
              <CopyButton text={sha256} label="Copy SHA-256" />
            </p>
          </li>
        ))}
      </ul>
    </section>
  )
}

/** How each program runs the file. */
function samplesOf({ id, format, files, merge }: Export): { name: string; code: string }[] {
  const file = files[0]?.name ?? 'model'
  const fetch = `curl -LOJ ${location.origin}/v1/exports/${id}/download -H "Authorization: Bearer $TUNERY_KEY"`
  const folder = file.replace(/\.(tar|zip)$/, '')
  if (format === 'gguf' && !merge)
    return [
      { name: 'Download', code: fetch },
      { name: 'llama.cpp', code: `llama-server -m BASE.gguf --lora ${file}` },
    ]
  if (format === 'gguf')
    return [
      { name: 'Download', code: fetch },
      { name: 'llama.cpp', code: `llama-server -m ${file} --jinja` },
      { name: 'Ollama', code: `echo 'FROM ./${file}' > Modelfile\nollama create tuned -f Modelfile\nollama run tuned` },
      { name: 'Bundle', code: `./tunery bundle ${file} -o served   # a self-contained server` },
    ]
  if (format === 'onnx')
    return [
      { name: 'Download', code: `${fetch}\ntar -xf ${file}` },
      {
        name: 'Node',
        code: `import { pipeline } from '@huggingface/transformers'

const generate = await pipeline('text-generation', './${folder}')
console.log(await generate([{ role: 'user', content: 'Hello' }]))`,
      },
    ]
  return [
    { name: 'Download', code: `${fetch}\ntar -xf ${file}` },
    {
      name: 'vLLM',
      code: merge ? `vllm serve ./${folder}` : `vllm serve BASE --enable-lora --lora-modules tuned=./${folder}`,
    },
    {
      name: 'transformers',
      code: `from transformers import pipeline

answer = pipeline("text-generation", model="./${folder}")
print(answer([{"role": "user", "content": "Hello"}]))`,
    },
  ]
}
