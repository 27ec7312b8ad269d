import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function DatasetPage() {
  return (
    <Page title="Dataset">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
