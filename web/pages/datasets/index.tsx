import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function DatasetsPage() {
  return (
    <Page title="Datasets">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
