// Things by their names, as links to their pages.
import { useQuery } from '@tanstack/react-query'
import { tunery } from '../lib/api.ts'
import { useDatasetNames, useModelNames } from '../lib/names.ts'
import { useMay } from '../lib/session.ts'
import { TextLink } from '../ui/button.tsx'

/** A tuned model by its name, or a base by its id, linked; a deployment as it is called. */
export function ModelName({ id }: { id: string }) {
  const nameOf = useModelNames()
  return id.startsWith('mdl_') ? (
    <TextLink to="/models/$modelId" params={{ modelId: id }} title={id}>
      {nameOf(id)}
    </TextLink>
  ) : (
    <BaseName id={id} />
  )
}

const rarely_ms = 60_000

function BaseName({ id }: { id: string }) {
  const { data } = useQuery({
    queryKey: ['hub', 'list'],
    queryFn: ({ signal }) => tunery.hub.list({}, { signal }),
    enabled: useMay('hub:read'),
    staleTime: rarely_ms,
  })
  if (!data?.models.some((each) => each.id === id)) return <span className="wrap-anywhere">{id}</span>
  return (
    <TextLink to="/models/base/$" params={{ _splat: id }} className="wrap-anywhere">
      {id}
    </TextLink>
  )
}

/** The same in a row that is a link itself. */
export function ModelText({ id }: { id: string }) {
  const nameOf = useModelNames()
  return <span title={id}>{nameOf(id)}</span>
}

export function DatasetName({ id }: { id: string }) {
  const nameOf = useDatasetNames()
  return id.startsWith('ds_') ? (
    <TextLink to="/datasets/$datasetId" params={{ datasetId: id }} title={id}>
      {nameOf(id)}
    </TextLink>
  ) : (
    <span className="wrap-anywhere">{id}</span>
  )
}
