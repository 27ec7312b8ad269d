// Things by their names, as links to their pages.
import { useDatasetNames, useModelNames } from '../lib/names.ts'
import { TextLink } from '../ui/button.tsx'

/** A tuned model by its name, linked; a base or a deployment as it is called. */
export function ModelName({ id }: { id: string }) {
  const nameOf = useModelNames()
  return id.startsWith('mdl_') ? (
    <TextLink to="/models/$modelId" params={{ modelId: id }} title={id}>
      {nameOf(id)}
    </TextLink>
  ) : (
    <span className="wrap-anywhere">{id}</span>
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
