"""layerwise_decay gives the weights that PyTorch's optimizers give with a group of parameters for each rate."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

import keras_txf as txf
from keras_txf.training import layerwise_decay

pytestmark = pytest.mark.parity

RATES = {"embedding": 1 / 8, "encoder_0": 1 / 4, "encoder_1": 1 / 2, "encoder_norm": 1.0, "logits": 1.0}
OPTIMIZERS = {
    "sgd": (lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
            lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True)),
    # Ours has its epsilon beside the uncorrected moment: small enough, it is the same.
    "adamw": (lambda: keras.optimizers.AdamW(0.1, weight_decay=0.3, epsilon=1e-12),
              lambda groups: torch.optim.AdamW(groups, weight_decay=0.3, eps=1e-12)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups(name):
    make, make_theirs = OPTIMIZERS[name]
    model = txf.models.encoder_classifier(11, 4, num_layers=2, dim=12, num_heads=3, norm_placement="pre")
    variables = model.trainable_variables
    theirs = [torch.nn.Parameter(torch.tensor(np.array(ops.convert_to_numpy(v)))) for v in variables]
    groups = [
        {"params": [parameter], "lr": 0.1 * RATES[variable.path.split("/")[0]]}
        for variable, parameter in zip(variables, theirs)
    ]
    optimizer, their_optimizer = layerwise_decay(make(), 0.5), make_theirs(groups)
    random = np.random.default_rng(0)
    for _ in range(5):
        gradients = [random.normal(size=variable.shape).astype("float32") for variable in variables]
        optimizer.apply([ops.convert_to_tensor(gradient) for gradient in gradients], variables)
        for parameter, gradient in zip(theirs, gradients):
            parameter.grad = torch.tensor(gradient)
        their_optimizer.step()
    for variable, parameter in zip(variables, theirs):
        ours = ops.convert_to_numpy(variable)
        np.testing.assert_allclose(ours, parameter.detach().numpy(), rtol=1e-5, atol=1e-5, err_msg=variable.path)
