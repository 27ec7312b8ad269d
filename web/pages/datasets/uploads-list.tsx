import { useQuery } from '@tanstack/react-query'
import { CircleAlert, CircleCheck, Columns3, FileUp, RotateCw, X } from 'lucide-react'
import { useRef, useState } from 'react'
import type { Dataset } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { formatBytes, formatPercent } from '../../lib/format.ts'
import { Button, IconButton, LinkButton } from '../../ui/button.tsx'
import { Progress } from '../../ui/feedback.tsx'
import { Card } from '../../ui/layout.tsx'
import { ColumnsDialog } from './columns-dialog.tsx'
import {
  columnsOf,
  continueUpload,
  dropUpload,
  hasFile,
  isActive,
  mapColumns,
  startUpload,
  type Upload,
} from './uploads.ts'

/** Uploads that are in progress, have stopped, or have just ended. */
export function UploadsList({ uploads }: { uploads: readonly Upload[] }) {
  if (uploads.length === 0) return null
  return (
    <Card title="Uploads">
      <ul className="-my-2 divide-y divide-line" aria-live="polite">
        {uploads.map((upload) => (
          <UploadItem key={upload.id} upload={upload} />
        ))}
      </ul>
    </Card>
  )
}

/** A dataset of the same file that was there before. */
function useTwin(dataset: Dataset | undefined): Dataset | undefined {
  const { data } = useQuery({
    queryKey: ['datasets', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.datasets.list({ limit: 100 }, { signal }),
    enabled: dataset !== undefined,
  })
  return data?.items.find(({ id, sha256 }) => sha256 === dataset?.sha256 && id !== dataset.id)
}

function UploadItem({ upload }: { upload: Upload }) {
  const { id, status, sent_bytes, size_bytes, state, error, dataset } = upload
  const name = upload.fields.name ?? upload.name
  const share = size_bytes > 0 ? sent_bytes / size_bytes : 0
  const input = useRef<HTMLInputElement>(null)
  const isHub = upload.fields.format === 'huggingface'
  const twin = useTwin(dataset)
  const text = {
    sending: state
      ? `${formatBytes(sent_bytes)} of ${formatBytes(size_bytes)}, ${formatPercent(share)}`
      : isHub
        ? 'Downloading from the Hub'
        : `Uploading ${formatBytes(size_bytes)}`,
    reading: 'Reading rows',
    done: twin ? `Uploaded. The same file is already there as “${twin.name}”.` : 'Uploaded',
    failed: error?.message,
    interrupted: `Stopped at ${formatPercent(share)}. Choose the same file within an hour to resume.`,
  }[status]
  const columns = status === 'failed' && hasFile(id) ? columnsOf(upload) : undefined
  const [mapping, setMapping] = useState(false)
  const active = isActive(upload)
  return (
    <li className="flex flex-wrap items-center gap-x-3 gap-y-2 py-3">
      <span aria-hidden className="[&_svg]:size-4.5">
        {status === 'done' ? (
          <CircleCheck className="text-good" />
        ) : status === 'failed' ? (
          <CircleAlert className="text-bad" />
        ) : (
          <FileUp className="text-muted" />
        )}
      </span>
      <div className="min-w-0 flex-1 basis-52">
        <p className="truncate font-medium">{name}</p>
        <p className={status === 'failed' ? 'text-bad' : 'text-sm text-muted'}>{text}</p>
        {active && (
          <Progress
            className="mt-1.5"
            label={`Upload of ${name}`}
            value={state && status === 'sending' ? share : null}
          />
        )}
      </div>
      <div className="flex items-center gap-2">
        {columns && (
          <>
            <Button size="sm" icon={<Columns3 aria-hidden />} onClick={() => setMapping(true)}>
              Map columns
            </Button>
            <ColumnsDialog
              name={name}
              columns={columns}
              open={mapping}
              onOpenChange={setMapping}
              onMapped={(chosen) => mapColumns(id, chosen)}
            />
          </>
        )}
        {status === 'failed' && hasFile(id) && !columns && (
          <Button size="sm" icon={<RotateCw aria-hidden />} onClick={() => continueUpload(id)}>
            {state ? 'Continue' : 'Try again'}
          </Button>
        )}
        {status === 'interrupted' && (
          <>
            <input
              ref={input}
              type="file"
              className="hidden"
              aria-label={`The file ${upload.name}`}
              onChange={({ target }) => {
                const file = target.files?.[0]
                if (file) startUpload(upload.account, file, upload.fields)
                target.value = ''
              }}
            />
            <Button size="sm" onClick={() => input.current?.click()}>
              Choose file
            </Button>
          </>
        )}
        {status === 'done' && dataset && (
          <LinkButton size="sm" to="/datasets/$datasetId" params={{ datasetId: dataset.id }}>
            View
          </LinkButton>
        )}
        <IconButton
          size="sm"
          label={active ? `Cancel the upload of ${name}` : `Remove ${name} from this list`}
          icon={<X aria-hidden />}
          onClick={() => dropUpload(id)}
        />
      </div>
    </li>
  )
}
