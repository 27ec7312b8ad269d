// The weights of a base model: whether they are here, how they are served, and how to get them.
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { Download } from 'lucide-react'
import type { Model, Need } from '../../sdk/index.ts'
import { tunery } from '../lib/api.ts'
import { formatBytes, formatPercent } from '../lib/format.ts'
import { refresh_ms } from '../lib/query.ts'
import { useMay } from '../lib/session.ts'
import { Button } from '../ui/button.tsx'
import { Badge, Progress, Status } from '../ui/feedback.tsx'
import { toastError } from '../ui/toast.tsx'

const isMoving = ({ download }: Model) =>
  download !== null && ['queued', 'downloading', 'converting'].includes(download.status)

/** All base models, refreshed while one downloads. */
export const useBases = () =>
  useQuery({
    queryKey: ['hub', 'list'],
    queryFn: ({ signal }) => tunery.hub.list({}, { signal }),
    refetchInterval: ({ state }) => (state.data?.models.some(isMoving) ? refresh_ms : false),
  })

/** This machine, and the base that is recommended for it. */
export const useHubMachine = () =>
  useQuery({ queryKey: ['hub', 'machine'], queryFn: ({ signal }) => tunery.hub.machine({ signal }) })

/** Memory that a use needs; marked where this machine has less. */
export function NeedText({ need }: { need: Need | null }) {
  if (!need) return '–'
  const text = formatBytes(need.mb * 1e6)
  return need.fits ? text : <span className="text-muted" title="More than this machine has">{`${text}, too much`}</span>
}

/** What to know before it is chosen: what it is for, whether it trains here, and what it asks for. */
export function BaseBadges({ model: { category, recommended, gated, methods, pictures, tasks } }: { model: Model }) {
  return (
    <>
      {category !== 'language' && <Badge>{category}</Badge>}
      {tasks.includes('thoughts') && <Badge>thinks</Badge>}
      {recommended && <Badge tone="accent">recommended</Badge>}
      {gated && <Badge tone="warn">gated</Badge>}
      {methods.length === 0 && category !== 'embedding' && <Badge tone="warn">too large to train here</Badge>}
      {pictures && (
        <Badge tone={pictures.served ? 'good' : 'warn'}>{pictures.served ? 'reads images' : 'text only'}</Badge>
      )}
    </>
  )
}

/** In which form the weights answer, and how far that is from the original; empty where there is nothing to know. */
export function servedForm({ weights: { keep_original, eight_bits, eight_bits_problem, available } }: Model): string {
  if (available && keep_original) return 'Served with its original weights.'
  if (eight_bits_problem) return `Served with its original weights. ${eight_bits_problem}`
  if (!eight_bits) return ''
  const { size_mb, original_type, distance } = eight_bits
  return (
    `Served in 8-bit (${formatBytes(size_mb * 1e6)}, from ${original_type}): same top token for ` +
    `${formatPercent(distance.same_top, 1)} of ${distance.tokens} tokens, ${distance.divergence} nats apart on average.`
  )
}

/** `downloaded`, a download on its way, or the button that begins one. */
export function BaseWeights({ model }: { model: Model }) {
  const mayTrain = useMay('tuning:write')
  const client = useQueryClient()
  const refresh = () => client.invalidateQueries({ queryKey: ['hub'] })
  const start = useMutation({
    mutationFn: () => tunery.hub.startDownload(model.id),
    onSuccess: refresh,
    onError: toastError('Could not start the download'),
  })
  const cancel = useMutation({
    mutationFn: () => tunery.hub.cancelDownload(model.id),
    onSuccess: refresh,
    onError: toastError('Could not cancel the download'),
  })
  const { weights, download } = model
  if (weights.available) return <Status status="downloaded" tone="good" />
  if (download && isMoving(model))
    return (
      <span className="flex items-center justify-end gap-2">
        <Progress
          className="w-24"
          value={download.status === 'downloading' ? download.progress : null}
          label={`${model.name}: ${download.status}`}
        />
        {mayTrain && (
          <Button size="sm" variant="quiet" busy={cancel.isPending} onClick={() => cancel.mutate()}>
            Cancel download
          </Button>
        )}
      </span>
    )
  return (
    <span className="flex items-center justify-end gap-2">
      {download?.error && <Badge tone="bad">failed</Badge>}
      <span title={download?.error?.message ?? weights.how_to_get ?? undefined}>
        <Button
          size="sm"
          icon={<Download aria-hidden />}
          busy={start.isPending}
          disabled={!mayTrain}
          onClick={() => start.mutate()}
        >
          <span className={weights.size_mb ? 'max-sm:sr-only' : undefined}>Download</span>
          {weights.size_mb && formatBytes(weights.size_mb * 1e6)}
        </Button>
      </span>
    </span>
  )
}
